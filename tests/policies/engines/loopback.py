"""A small server that answers vLLM's endpoints in vLLM's format and misbehaves on request.

The model is a real one from a folder; peft reads adapters from the folder in which they are handed
over. Between requests it stores only weights, their version, and the requests.
"""

import json
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import torch
from safetensors.torch import load_file
from torch import distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

ROWS = ("/inference/v1/generate", "/v1/completions")


@dataclass
class Habits:
    """Deviations from a correct server; there are none by default."""

    temperature: float | None = None  # the temperature of samples and reports
    raw: bool = False  # reports values before the temperature
    top_k: int = 0  # cuts the tail
    top_p: float = 1.0
    shifted: bool = False  # reports the values of the previous token
    stale: bool = False  # claims to have taken weights
    keeps_head: bool = False  # takes all weights but the head, even a tied one
    bare: bool = False  # ignores adapters
    dtype: torch.dtype = torch.float32
    api_key: str | None = None
    dev_mode: bool = True
    mode: str = "processed_logprobs"
    versions: bool = True  # knows /weight_info
    tokens: bool = True  # has the token endpoint
    transfer: str | None = "gloo"  # the backend of vLLM's own weight transfer
    max_loras: int = 8
    max_logprobs: int = 20
    before_token: object = None  # called with the number of tokens of a row so far
    # (path, reply so far) -> the reply sent instead, or None; called before every reply.
    spoil: object = None


@dataclass
class Loopback:
    """The state of a server."""

    path: str
    habits: Habits = field(default_factory=Habits)
    name: str = "base"
    room: int = 128
    asked: list[tuple[str, object]] = field(default_factory=list)  # path and payload
    asleep: set[str] = field(default_factory=set)
    connections: int = 0  # opened so far

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.running = threading.Condition(self.lock)
        self.paused = False
        self.tokenizer = AutoTokenizer.from_pretrained(self.path)
        self.start()

    def start(self) -> None:
        """The state after a start: the weights of the folder, no adapters, no version."""
        self.model = AutoModelForCausalLM.from_pretrained(self.path, dtype=self.habits.dtype).eval()
        self.adapters: dict[str, str] = {}
        self.version = "default"

    def paths(self, prefix: str = "") -> list[str]:
        """The paths of all requests so far."""
        return [path for path, _ in self.asked if path.startswith(prefix)]

    def rows(self) -> list[dict]:
        """The payloads of all requests for rows so far."""
        return [payload for path, payload in self.asked if path in ROWS and payload]

    # The endpoints: payload, query -> (status, reply).

    def models(self, *_):
        base = {"id": self.name, "object": "model", "root": self.path, "max_model_len": self.room}
        cards = [{"id": n, "root": p, "parent": self.name} for n, p in self.adapters.items()]
        return 200, {"object": "list", "data": [base, *cards]}

    def info(self, *_):
        model = {"logprobs_mode": self.habits.mode, "enable_sleep_mode": True}
        transfer = self.habits.transfer and {"backend": self.habits.transfer}
        return 200, {
            "vllm_config": {
                "model_config": model,
                "lora_config": {"max_lora_rank": 16, "max_loras": self.habits.max_loras},
                "weight_transfer_config": transfer,
            }
        }

    def rpc(self, payload, _):
        assert payload["method"] == "reload_weights"
        folder = Path(payload["kwargs"]["weights_path"])
        if not any(folder.glob("*.safetensors")):  # vLLM itself crashes on this
            return 500, {"error": {"message": f"Cannot find any model weights with `{folder}`"}}
        if "weights" in self.asleep:
            return 500, {"error": {"message": "weights are asleep"}}
        if not self.habits.stale:
            weights = {}
            for file in folder.glob("*.safetensors"):
                weights |= load_file(file)
            if self.habits.keeps_head:
                head = self.model.get_output_embeddings()
                head.weight = torch.nn.Parameter(head.weight.detach().clone())
                weights.pop("lm_head.weight", None)
            with torch.no_grad():
                self.model.load_state_dict(weights, strict=False)
        return 200, {"results": [None]}

    def load_adapter(self, payload, _):
        from peft import PeftModel

        name, folder = payload["lora_name"], payload["lora_path"]
        if name in self.adapters and not payload.get("load_inplace"):
            return 400, {"error": {"message": "has already been loaded", "code": 400}}
        if name in self.adapters:
            self.model.delete_adapter(name)
        if isinstance(self.model, PeftModel):
            self.model.load_adapter(folder, adapter_name=name)
        else:
            self.model = PeftModel.from_pretrained(self.model, folder, adapter_name=name).eval()
        self.adapters[name] = folder
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def unload_adapter(self, payload, _):
        if self.adapters.pop(payload["lora_name"], None) is None:
            return 404, {"error": {"message": "cannot be found", "code": 404}}
        self.model.delete_adapter(payload["lora_name"])
        return 200, "Success"

    def tell_version(self, *_):
        return (200, {"weight_version": self.version}) if self.habits.versions else (404, {})

    def set_version(self, payload, _):
        if not self.habits.versions:
            return 404, {}
        self.version = payload["new_version"]
        return 200, {"success": True, "new_version": self.version}

    # vLLM's own transfer, by gloo.

    def meet(self, payload, _):
        info = payload["init_info"]
        port, size = info["master_port"], info["world_size"]
        wait = timedelta(seconds=20)
        store = dist.TCPStore(info["master_address"], port, size, is_master=False, timeout=wait)
        self.group = dist.ProcessGroupGloo(store, info["rank_offset"], size, wait)
        return 200, {"message": "Weight transfer initialized"}

    def start_update(self, *_):
        self.updating = True
        return 200, {}

    def update(self, payload, _):
        assert self.updating
        info = payload["update_info"]
        weights = {}
        for name, dtype, shape in zip(*info.values(), strict=True):
            weights[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(weights[name].flatten().view(torch.uint8), 0).wait()
        self.received = weights
        with torch.no_grad():
            self.model.load_state_dict(weights, strict=False)
        return 200, {}

    def finish_update(self, *_):
        self.updating = False
        return 200, {}

    def pause(self, _, query):
        assert query["mode"] == ["keep"]
        self.paused = True
        return 200, {"status": "paused"}

    def resume(self, *_):
        self.paused = False
        self.running.notify_all()
        return 200, {"status": "resumed"}

    def sleep(self, _, query):
        self.asleep = {"weights", "kv_cache"}
        if query["level"] == ["2"]:  # the weights are lost
            for parameter in self.model.parameters():
                parameter.data.fill_(float("nan"))
        return 200, None

    def wake(self, _, query):
        self.asleep -= set(query["tags"])
        return 200, None

    def refusal(self, payload):
        if self.asleep:
            return 500, {"error": {"message": "the engine is asleep"}}
        if payload["model"] not in (self.name, *self.adapters):
            return 404, {"error": {"message": f"The model `{payload['model']}` does not exist."}}
        return None

    def generate(self, payload, _):
        if not self.habits.tokens:
            return 403, {"error": {"message": "Restart vllm serve with --enable-scale-out"}}
        if not payload:
            return 400, {"error": {"message": "Field required"}}
        if refusal := self.refusal(payload):
            return refusal
        asked = {"prompt": payload["token_ids"], "model": payload["model"]}
        tokens, logp, reason, taken = self.sampled(asked | payload["sampling_params"])
        said = [{"token_id": t, "logprob": x, "rank": 1} for t, x in zip(tokens, logp, strict=True)]
        choice = {
            "index": 0,
            "finish_reason": reason,
            "token_ids": tokens,
            "weight_versions": spans(taken),
            "logprobs": {"content": said},
        }
        return 200, {
            "model": payload["model"],
            "prompt_token_ids": payload["token_ids"],
            "choices": [choice],
        }

    def complete(self, payload, _):
        if refusal := self.refusal(payload):
            return refusal
        if payload.get("prompt_logprobs") is not None:
            return self.judge(payload)
        tokens, logp, reason, _ = self.sampled(payload)
        choice = {
            "index": 0,
            "text": self.tokenizer.decode(tokens),
            "logprobs": {
                "tokens": [f"token_id:{token}" for token in tokens],
                "token_logprobs": logp,
                "top_logprobs": [{f"token_id:{t}": x} for t, x in zip(tokens, logp, strict=True)],
                "text_offset": [0] * len(tokens),
            },
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": tokens,
            "prompt_token_ids": payload["prompt"],
        }
        return 200, {"object": "text_completion", "model": payload["model"], "choices": [choice]}

    def tokenize(self, payload, _):
        ids = self.tokenizer(payload["prompt"], add_special_tokens=payload["add_special_tokens"])
        return 200, {"tokens": ids["input_ids"], "max_model_len": self.room}

    @torch.no_grad()
    def judge(self, payload):
        """Log-probabilities of a prompt's ids, and of the most likely ones at their positions."""
        ids, most = payload["prompt"], payload["prompt_logprobs"]
        if most > self.habits.max_logprobs:
            message = f"Requested prompt logprobs of {most}, which is greater than max allowed"
            return 400, {"error": {"message": message}}
        logits = self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
        every = [None]
        for logp, token in zip(logits.log_softmax(-1).tolist(), ids[1:], strict=False):
            order = sorted(range(len(logp)), key=lambda one, logp=logp: -logp[one])
            told = [token, *order[:most]]
            every.append(
                {one: {"logprob": logp[one], "rank": 1 + order.index(one)} for one in told}
            )
        choice = {"index": 0, "prompt_logprobs": every, "prompt_token_ids": ids}
        return 200, {"model": payload["model"], "choices": [choice]}

    # Sampling, according to the payload and the habits.

    def sampled(self, payload):
        """Tokens, log-probabilities, the finish reason, and the version that sampled each token."""
        generator = torch.Generator().manual_seed(payload["seed"])
        ids, tokens, logp, taken = list(payload["prompt"]), [], [], []
        while len(tokens) < payload["max_tokens"]:
            if self.habits.before_token is not None:
                self.habits.before_token(len(tokens))
            with self.running:
                self.running.wait_for(lambda: not self.paused)
                said, reported = self.distribution(self.logits(ids, payload["model"]), payload)
                taken.append(self.version)
            greedy = payload["temperature"] == 0
            token = said.argmax() if greedy else said.exp().multinomial(1, generator=generator)
            ids.append(int(token))
            tokens.append(int(token))
            logp.append(float(reported[int(token)]))
            stopped = any(stop in self.tokenizer.decode(tokens) for stop in payload["stop"])
            if tokens[-1] in payload["stop_token_ids"] or stopped:
                return tokens, self.shift(logp), "stop", taken
        return tokens, self.shift(logp), "length", taken

    @torch.no_grad()
    def logits(self, ids, model):
        if model in self.adapters:
            self.model.set_adapter(model)
        bare = self.adapters and (self.habits.bare or model == self.name)
        with self.model.disable_adapter() if bare else nullcontext():
            out = self.model(input_ids=torch.tensor([ids]), use_cache=False)
        return out.logits[0, -1].float()

    def distribution(self, logits, payload):
        """The log-probabilities that are sampled from, and those that are reported."""
        habits, raw = self.habits, logits.log_softmax(-1)
        temperature = payload["temperature"] if habits.temperature is None else habits.temperature
        said = (logits / (temperature or 1.0)).log_softmax(-1)
        if top_k := habits.top_k or payload["top_k"]:
            said = said.masked_fill(said < said.topk(top_k).values[-1], -torch.inf).log_softmax(-1)
        if (top_p := min(habits.top_p, payload["top_p"])) < 1:
            ordered, ids = said.sort(descending=True)
            out = ordered.exp().cumsum(0) - ordered.exp() >= top_p
            said = said.masked_fill(out.scatter(0, ids, out), -torch.inf).log_softmax(-1)
        return said, raw if habits.raw else said

    def shift(self, logp):
        return [logp[0], *logp[:-1]] if self.habits.shifted else logp


class Handler(BaseHTTPRequestHandler):
    """One connection with any number of requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are written one by one

    def setup(self):
        super().setup()
        with self.server.state.lock:
            self.server.state.connections += 1

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.reply({"/health": "health", "/v1/models": "models", "/weight_info": "tell_version",
                    "/get_world_size": "size",
                    "/is_sleeping": "sleeping", "/server_info": "info"}, None)  # fmt: skip

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.reply({"/inference/v1/generate": "generate", "/v1/completions": "complete",
                    "/tokenize": "tokenize",
                    "/v1/load_lora_adapter": "load_adapter",
                    "/v1/unload_lora_adapter": "unload_adapter", "/collective_rpc": "rpc",
                    "/init_weight_transfer_engine": "meet", "/update_weights": "update",
                    "/start_weight_update": "start_update",
                    "/finish_weight_update": "finish_update", "/pause": "pause",
                    "/resume": "resume", "/reset_prefix_cache": "reset",
                    "/update_weight_version": "set_version",
                    "/sleep": "sleep", "/wake_up": "wake"}, json.loads(body))  # fmt: skip

    def reply(self, endpoints, payload):
        state, url = self.server.state, urlsplit(self.path)
        state.asked.append((self.path, payload))
        status, said = self.said(state, endpoints.get(url.path), payload, parse_qs(url.query))
        body = b"" if said is None else json.dumps(said).encode()
        if state.habits.spoil is not None:
            spoilt = state.habits.spoil(url.path, said)
            status, body = (status, body) if spoilt is None else spoilt
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # the client is gone
            self.wfile.write(body)

    def said(self, state, endpoint, payload, query):
        key = state.habits.api_key
        if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
            return 401, {"error": "Unauthorized"}
        simple = {"size": {"world_size": 1}, "health": None, "reset": {"success": True},
                  "sleeping": {"is_sleeping": bool(state.asleep)}}  # fmt: skip
        of_developers = ("info", "rpc", "reset", "sleep", "wake", "sleeping", "tell_version",
                         "set_version", "pause", "resume")  # fmt: skip
        if endpoint is None or (endpoint in of_developers and not state.habits.dev_mode):
            return 404, {"detail": "Not Found"}
        if endpoint in simple:
            return 200, simple[endpoint]
        # Rows are generated concurrently, token by token.
        with nullcontext() if url_of_rows(self.path) else state.lock:
            return getattr(state, endpoint)(payload, query)


def url_of_rows(path):
    return urlsplit(path).path in ROWS


def spans(taken):
    """Consecutive tokens that one version sampled."""
    starts = [i for i, version in enumerate(taken) if i == 0 or version != taken[i - 1]]
    ends = [*starts[1:], len(taken)]
    return [
        {"version": taken[start], "start": start, "end": end}
        for start, end in zip(starts, ends, strict=True)
    ]


@contextmanager
def serving(state: Loopback, port: int = 0, handler=Handler):
    """A context with the address of a server, which runs in a thread of this process."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.state, server.daemon_threads = state, True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def slowly(seconds: float):
    """A `spoil` that delays completions."""

    def spoil(path, said):
        if path in ROWS:
            time.sleep(seconds)

    return spoil
