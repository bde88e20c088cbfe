"""``ds4proto quality``: what 16, 8 and 4 bits on the wire cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ds4proto.cli._options import json_option
from ds4proto.cli._output import printable, progress, stderr, stdout, write_json
from ds4proto.errors import ExitCode, WrongUsage

if TYPE_CHECKING:
    from ds4proto_runtime.engines.base import Engine
    from ds4proto_runtime.engines.tokenizer import ReadsText
    from ds4proto_runtime.quality.study import Plan

FORMATS = "f32,f16,e4m3,bf16,int8,fp8,int4,mxfp8,mxfp4,nvfp4"
SMALLEST_FOR_CONCLUSIONS = 50_000_000
"""Bytes of a GGUF file below which a model is taken for a plumbing check."""


@click.command(
    epilog="\b\nExample:\n"
    "  ds4proto quality --model SmolLM2-135M-Instruct.Q4_1.gguf --text wiki \\\n"
    "      --boundaries 1,3,7 --formats f32,f16,e4m3,int8 --out report"
)
@click.option("--model", "-m", required=True, help="GGUF file, or 'deepseek_v4:tiny'.")
@click.option("--text", required=True, help="UTF-8 file, or 'wiki' (package gensim).")
@click.option("--boundaries", default="1,3,7", show_default=True)
@click.option("--formats", default=FORMATS, show_default=True)
@click.option("--windows", default=24, show_default=True, type=click.IntRange(1))
@click.option("--window", default=1024, show_default=True, type=click.IntRange(2))
@click.option("--prompts", default=4, show_default=True, type=click.IntRange(1))
@click.option("--continuation", default=512, show_default=True, type=click.IntRange(1))
@click.option("--questions", default=50, show_default=True, type=click.IntRange(0))
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1, 64))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("quality-report"),
    show_default=True,
    help="Folder of the report and of the journal; a stopped study goes on there.",
)
@json_option
def cmd(
    model: str,
    text: str,
    boundaries: str,
    formats: str,
    windows: int,
    window: int,
    prompts: int,
    continuation: int,
    questions: int,
    seed: int,
    threads: int,
    out: Path,
    as_json: bool,
) -> int:
    """Measure what a wire codec costs in model quality.

    The model runs as a chain of slices; at each boundary the hidden state goes
    through the codec, as it would between two machines. Reported per codec and
    number of boundaries: likelihood of a text against the uncompressed wire, top-1
    agreement on frozen continuations, exact answers, and what crossed.
    """
    from ds4proto_runtime.quality.texts import load_text

    counts, names = _numbers(boundaries), _names(formats)
    content = load_text(text)  # what is wrong is told before seconds of loading
    _hush()
    import torch

    from ds4proto_runtime.quality.report import write
    from ds4proto_runtime.quality.study import Journal, Study, table

    torch.set_num_threads(threads)
    engine, tokenizer, plumbing, fingerprint = _loaded(model, window)
    plan, tokens = _planned(
        model,
        fingerprint,
        text,
        content,
        tokenizer,
        counts,
        names,
        windows=windows,
        window=window,
        prompts=prompts,
        continuation=continuation,
        questions=questions,
        seed=seed,
    )
    journal = Journal(out / "journal.jsonl", plan.key)
    study = Study(engine, tokenizer, tokens, plan, journal)
    todo = study.todo()
    with progress("measuring", len(todo)) as advance:
        for cell in study.run():
            advance(1)
            stderr().print(
                f"{cell['kind']} at {cell['boundaries']} boundaries,"
                f" {cell['format']}: done"
            )
    lines = write(
        plan, journal.cells, out, engine.shape.hidden_values, plumbing=plumbing
    )
    rows = table(plan, journal.cells)
    if not rows:
        stderr().print("nothing was measured")
        return ExitCode.NOTHING_RAN
    if as_json:
        write_json({"reading": lines, "rows": rows})
        return ExitCode.PASSED
    console = stdout()
    for row in rows:
        console.print(
            f"{row['boundaries']:>2} boundaries  {row['format']:<6}"
            f"  NLL {row['nll']:.4f}  added {row['delta']:+.4f}"
            f"  top-1 {100 * (row['top1'] or 0):6.2f} %"
        )
    for line in lines:
        console.print(printable(line))
    console.print(f"report: {out / 'quality.html'}")
    return ExitCode.PASSED


def _hush() -> None:
    """Keep off what torchao and torch say of themselves as transformers loads them."""
    import logging

    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise WrongUsage(
            f"--boundaries {text}: give numbers with commas, such as 1,3,7"
        ) from None


def _names(text: str) -> tuple[str, ...]:
    from ds4proto import codec
    from ds4proto_runtime.quality.wire import REFERENCE

    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        try:
            codec.get(name)
        except codec.CodecError as error:
            raise WrongUsage(f"--formats {text}: {error}") from None
    return names if REFERENCE in names else (REFERENCE, *names)


def _loaded(model: str, window: int) -> tuple[Engine, ReadsText, bool, str]:
    import hashlib

    from ds4proto.model import GgufError, read_gguf
    from ds4proto_runtime.engines.decoder import DecoderEngine
    from ds4proto_runtime.engines.tokenizer import Tokenizer
    from ds4proto_runtime.quality.bytes_text import ByteText

    context = max(2048, window)
    if model == "deepseek_v4:tiny":
        from ds4proto_runtime.engines.deepseek_v4 import DeepseekV4Engine
        from ds4proto_runtime.engines.v4_weights import tiny_config

        tiny = DeepseekV4Engine(tiny_config(), ctx=context, prefill_cap=context)
        return tiny, ByteText(), True, model
    path = Path(model)
    try:
        read_gguf(path)
    except GgufError as error:
        raise WrongUsage(str(error)) from None
    engine = DecoderEngine(path, ctx=context, prefill_cap=context)
    tokenizer = Tokenizer(engine.weights.metadata)
    size = path.stat().st_size
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return engine, tokenizer, size < SMALLEST_FOR_CONCLUSIONS, digest[:16]


def _planned(
    model: str,
    fingerprint: str,
    text: str,
    content: str,
    tokenizer: ReadsText,
    counts: tuple[int, ...],
    formats: tuple[str, ...],
    **words: int,
) -> tuple[Plan, list[int]]:
    import hashlib

    from ds4proto_runtime.quality.study import Plan

    needed = words["windows"] * words["window"]
    # a token holds at least one character; no need to take apart more than that
    tokens = tokenizer.encode(content[: 12 * needed])
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    name = Path(model).name
    plan = Plan(name, fingerprint, text, digest, counts, formats, **words)
    return plan, tokens
