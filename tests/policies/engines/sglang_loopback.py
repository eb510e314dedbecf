"""The small server in the format of SGLang 0.5.23, written from its source.

Of srt: entrypoints/http_server.py, managers/io_struct.py, managers/tokenizer_manager.py and
sampling/sampling_params.py.
"""

import json

from loopback import Handler, Loopback


class SglangLoopback(Loopback):
    """The same model, adapters and versions behind SGLang's endpoints."""

    def info(self, *_):
        own = {"enable_lora": True, "max_lora_rank": 16, "enable_memory_saver": False}
        return 200, {"model_path": self.path, "weight_version": self.version, **own}

    def update(self, payload, _):
        assert payload["flush_cache"] is True
        status, said = self.rpc(
            {"method": "reload_weights", "kwargs": {"weights_path": payload["model_path"]}}, None
        )
        done = status == 200
        return (200 if done else 400), {"success": done, "message": str(said)}

    def load_adapter(self, payload, query):
        status, said = super().load_adapter(payload, query)
        return status, {"success": status == 200, "error_message": str(said)}

    def unload_adapter(self, payload, query):
        status, _ = super().unload_adapter(payload, query)
        return (200 if status == 200 else 400), {"success": status == 200}

    def set_version(self, payload, query):
        assert payload["abort_all_requests"] is False
        return super().set_version(payload, query)

    def release(self, payload, _):
        self.asleep |= set(payload["tags"])
        return 200, None

    def restore(self, payload, _):
        assert set(payload["tags"]) <= self.asleep, "it resumes what was released"
        self.asleep -= set(payload["tags"])
        return 200, None

    def generate(self, payload, _):
        if self.asleep:
            return 500, {"error": {"message": "no memory"}}
        name, numbers = payload["lora_path"], payload["sampling_params"]
        if name is not None and name not in self.adapters:
            message = f"The following requested LoRA adapters are not loaded: {name}"
            return 400, {"error": {"message": message}}
        assert numbers["top_k"] == -1 or numbers["top_k"] >= 1
        assert payload["return_logprob"] and payload["logprob_start_len"] == -1
        assert not {"seed", "logprobs", "max_tokens"} & set(numbers)
        tokens, logp, reason, _ = self.sampled(
            {
                **numbers,
                "prompt": payload["input_ids"],
                "model": name or self.name,
                "seed": numbers["sampling_seed"],
                "max_tokens": numbers["max_new_tokens"],
                "top_k": max(numbers["top_k"], 0),
            }
        )
        ended = {"matched": tokens[-1]} if reason == "stop" else {"length": len(tokens)}
        said = [[x, token, None] for x, token in zip(logp, tokens, strict=True)]
        meta = {
            "id": "1",
            "finish_reason": {"type": reason, **ended},
            "prompt_tokens": len(payload["input_ids"]),
            "weight_version": self.version,
            "output_token_logprobs": said,
            "output_token_logprobs_length": len(said),
        }
        text = self.tokenizer.decode(tokens)
        return 200, {"text": text, "output_ids": tokens, "meta_info": meta}


class SglangHandler(Handler):
    """The routes of SGLang."""

    def do_GET(self):
        self.reply({"/health": "health", "/v1/models": "models", "/model_info": "tell_version",
                    "/server_info": "info"}, None)  # fmt: skip

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.reply({"/generate": "generate", "/load_lora_adapter": "load_adapter",
                    "/unload_lora_adapter": "unload_adapter",
                    "/update_weights_from_disk": "update",
                    "/update_weight_version": "set_version",
                    "/release_memory_occupation": "release",
                    "/resume_memory_occupation": "restore"}, json.loads(body))  # fmt: skip
