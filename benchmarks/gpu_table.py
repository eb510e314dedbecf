"""The Markdown report of `gpu.py`."""

from __future__ import annotations

from collections.abc import Mapping

# Dense bfloat16 of the SXM parts by NVIDIA's datasheets, operations a second.
DATASHEET = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}
GIB = 2**30
Report = Mapping[str, object]


def as_text(report: Report) -> str:
    found = {name: x for name, x in report.get("sections", {}).items() if "failed" not in x}
    parts = [
        head(report),
        of_ceilings(found),
        of_tokens(found, report),
        of_pictures(found, report),
        of_sampling(found),
        of_rest(found),
        failures(report),
    ]
    return "\n".join(part for part in parts if part)


def head(report: Report) -> str:
    names = ("device", "date", "commit", "torch", "transformers")
    return ", ".join(f"{name} {report.get(name, 'unknown')}" for name in names) + "\n"


def peak(found: Mapping[str, Report], report: Report) -> float | None:
    """bfloat16 operations per second: from the datasheet, otherwise as measured here."""
    measured = found.get("ceilings", {}).get("bfloat16_flops_per_second")
    return DATASHEET.get(report.get("device"), measured)


def of_ceilings(found: Mapping[str, Report]) -> str:
    if (x := found.get("ceilings")) is None:
        return ""
    narrow, wide = x["bfloat16_flops_per_second"], x["float32_flops_per_second"]
    return (
        f"Products of random matrices: {narrow / 1e12:.3g} TFLOP/s in bfloat16, "
        f"{wide / 1e12:.3g} in float32; a copy: {x['copied_bytes_per_second'] / 1e9:.3g} GB/s\n"
    )


def of_tokens(found: Mapping[str, Report], report: Report) -> str:
    rows = [
        [
            name,
            f"{x['sampled_tokens_per_second']:.0f}",
            f"{x['trained_tokens_per_second']:.0f}",
            mfu(x["update_flops_per_second"], peak(found, report)),
            phases(x),
            beside(x["memory"], "sampling"),
            beside(x["memory"], "update"),
            f"{x['reported'].get('rollout_corr/abs_logp_diff', float('nan')):.1e}",
        ]
        for name, x in found.items()
        if "sampled_tokens_per_second" in x
    ]
    heads = (
        "tokens", "sampled/s", "trained/s", "MFU of updates",
        "seconds: sample, complete, train, step", "GiB sampling: held, estimated",
        "GiB update: held, estimated", "mean abs logp difference, nats",
    )  # fmt: skip
    return table(heads, rows)


def of_pictures(found: Mapping[str, Report], report: Report) -> str:
    rows = [
        [
            name,
            f"{x['pictures_per_second']:.3g}",
            mfu(x["sampling_flops_per_second"], peak(found, report)),
            f"{x['trained_rows_per_second']:.3g}",
            mfu(x["update_flops_per_second"], peak(found, report)),
            phases(x),
            beside(x["memory"], "sampling"),
            beside(x["memory"], "update"),
        ]
        for name, x in found.items()
        if "pictures_per_second" in x
    ]
    heads = (
        "pictures", "sampled/s", "MFU of sampling", "trained rows/s", "MFU of updates",
        "seconds: sample, complete, train, step", "GiB sampling", "GiB update",
    )  # fmt: skip
    return table(heads, rows)


def of_sampling(found: Mapping[str, Report]) -> str:
    """Compared with the time of reading every weight once at the measured copy speed."""
    speed = found.get("ceilings", {}).get("copied_bytes_per_second")
    rows = []
    for name, x in found.items():
        for count, ways in x.get("ways", {}).items():
            for way, taken in ways.items():
                if isinstance(taken, str):
                    rows.append([name, str(count), way, taken, ""])
                    continue
                floor = "" if speed is None else f"{x['least_bytes_of_a_step'] / speed / taken:.1%}"
                figures = [f"{1000 * taken:.2f} ms, {int(count) / taken:.0f} tokens/s", floor]
                rows.append([name, str(count), way, *figures])
    return table(("sampling", "rows", "way", "a step", "of the memory's speed"), rows)


def of_rest(found: Mapping[str, Report]) -> str:
    lines = []
    for name, x in found.items():
        if "waits" in x:
            where = ", ".join(f"{place} ({count})" for place, count in x["where"].items())
            lines.append(f"{name}: {x['waits']} in an iteration: {where or 'none seen'}\n")
        for budget, seconds in x.get("seconds_by_logit_budget", {}).items():
            lines.append(f"{name}: {x['steps']} steps in {seconds:.3f} s, logit_budget={budget}\n")
        if "loaded_seconds" in x:
            lines.append(
                f"{name}: written in {x['written_seconds']:.1f} s, loaded in "
                f"{x['loaded_seconds']:.1f} s, moved to the device in {x['moved_seconds']:.1f} s\n"
            )
    return "\n".join(lines)


def in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def failures(report: Report) -> str:
    said = {"failed": "FAILED", "stopped": "INCOMPLETE"}
    return "\n".join(
        f"{word} {name}: {x[key]}\n"
        for name, x in report.get("sections", {}).items()
        for key, word in said.items()
        if key in x
    )


def mfu(done: float, peak: float | None) -> str:
    share = "" if peak is None else f"{done / peak:.1%}, "
    return f"{share}{done / 1e12:.3g} TFLOP/s"


def phases(x: Report) -> str:
    seconds = x["seconds"]
    return ", ".join(f"{seconds[p]:.2f}" for p in ("sample", "complete", "train", "step"))


def beside(memory: Mapping[str, int], phase: str) -> str:
    both = (memory[phase], memory.get(f"{phase}_estimate"))
    return ", ".join(f"{size / GIB:.1f}" for size in both if size is not None)


def table(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    lines = [list(heads), ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
