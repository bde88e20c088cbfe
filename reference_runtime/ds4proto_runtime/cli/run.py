"""``ds4proto run``: a coordinator, a worker, or a whole model in one process."""

from __future__ import annotations

import click

from ds4proto.errors import ExitCode, WrongUsage

_HELP = """Run a model over a pipeline of machines, or alone.

The options, their grammar and their error texts are ds4's. A coordinator owns the
first layers and reads the prompt; workers own the others and dial the coordinator.

\b
Roles:
  --role none|coordinator|worker   default none: the whole model in this process
  --layers A:B | A:output          own layers, both ends inclusive
  --listen HOST PORT               coordinator: where workers register
                                   worker: data port; default: a free one
  --coordinator HOST PORT          worker: whom to dial
  --dial-limit TIME                worker: give up after so long without a coordinator;
                                   default: as ds4, never
\b
Pipeline (coordinator):
  --dist-activation-bits 32|16|8   width of hidden state on the wire
  --dist-prefill-chunk N           tokens of one chunk
  --dist-prefill-window N          chunks in flight, at most 64
  --dist-replay-check              prefill twice, compare the logits
  --route-wait TIME                wait so long for workers (60s)
  --rejoin TIME                    a lost route may come back within (15s)
  --local-decode                   prefill over the route, decode here
  --link RATE                      with it: predict the hand-over at 280MB/s or so;
                                   default: the rate at which the prompt was sent
  --dialect upstream|ds4proto      ds4proto: an extension between these peers alone
  --wire-format NAME               with it: int8, fp8, int4, mxfp8, mxfp4, nvfp4, bf16
\b
Model and text:
  -m FILE                          GGUF file, or config.json of a DeepSeek V4 whose
                                   weights are generated; without it the toy model
  --engine toy|decoder|deepseek_v4
  -p TEXT, --prompt-file FILE      the toy model takes token ids, "1,2,3", or bytes
  -n N, --temp F, --seed N, --ctx N
  --device cpu|cuda                torch device
\b
More:
  --numeric-profile NAME           8-bit encoder of which build: strict, gcc-linux ..
  --save FILE, --load FILE         saved session (DSV4), on any topology; what is
                                   loaded stands in front of the prompt
  --trace FILE                     record every byte to a pcapng file
  --debug, --json
  --tensor-parallel ...            a tensor-parallel pair; see its own --help
  --plan-handover ...              predict the hand-over of a local decode, run nothing;
                                   see its own --help
\b
Examples:
  ds4proto run -p "1,2,3" -n 8
  ds4proto run --role coordinator --layers 0:3 --listen 127.0.0.1 5000 -p "1,2,3"
  ds4proto run --role worker --layers 4:output --coordinator 127.0.0.1 5000

These protocols know no authentication: keep the ports on a private network. Exit
status: 0 done, 1 failed (also a failed replay check), 2 wrong usage, 3 peer lost."""


_FORMS = frozenset({"--tensor-parallel", "--plan-handover"})
"""Options that make another command of this one, with a --help of its own."""


class _Run(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave the words of the other forms alone, --help among them."""
        if _FORMS.isdisjoint(args):
            return super().parse_args(ctx, args)
        ctx.params["arguments"] = tuple(args)
        return []


@click.command(
    "run",
    cls=_Run,
    help=_HELP,
    context_settings={
        "ignore_unknown_options": True,
        "help_option_names": ["-h", "--help"],
    },
    options_metavar="[OPTIONS]",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="")
def cmd(arguments: tuple[str, ...]) -> int:
    """Run what the options ask for."""
    if "--tensor-parallel" in arguments:
        return _tensor_parallel([w for w in arguments if w != "--tensor-parallel"])
    if "--plan-handover" in arguments:
        from ds4proto_runtime.cli.plan import plan

        return plan([word for word in arguments if word != "--plan-handover"])
    from ds4proto_runtime.cli.options import parse_options
    from ds4proto_runtime.pipeline.oneshot import run

    return run(parse_options(arguments))


def _tensor_parallel(arguments: list[str]) -> int:
    from importlib import import_module

    try:
        home = import_module("ds4proto_runtime.tp.cli")
    except ModuleNotFoundError as error:
        if error.name != "ds4proto_runtime.tp.cli":
            raise
        raise WrongUsage("--tensor-parallel is not part of this build") from None
    status: int = home.run(arguments)
    return ExitCode(status)
