"""A thousand tokens through one pair: batches, draft blocks, cancels, rewinds."""

from __future__ import annotations

import random

import pytest
from ds4proto_runtime.tp.toy import ToyShape

from ds4proto.link.ds4t_events import KEEP_ALL, KEEP_PREFIX, REPLAY
from ds4proto.link.plan import PlanOptions
from tests.runtime.tp.rig import options, pair, toy
from tests.runtime.tp.test_pair import Both

SHAPE = ToyShape(n_layer=2, n_embd=16, n_vocab=32)
TOKENS = 1000
CTX = 128


@pytest.mark.parametrize(("dialect", "seed"), [("v14", 1), ("v9w", 2)])
def test_a_thousand_tokens(dialect: str, seed: int) -> None:
    settings = options(dialect=dialect, plan=PlanOptions(chunk=16, split_min=8))
    choose = random.Random(seed)
    kinds: set[str] = set()
    with pair(toy(SHAPE), settings) as found:
        leader = found.leader
        both = Both(leader, SHAPE, settings.plan)
        open_ids = [both.create(CTX) for _ in range(3)]
        done = 0
        while done < TOKENS:
            known = choose.choice(open_ids)
            held = both.held(known)
            if len(held) > CTX - 20:
                if choose.random() < 0.5:
                    both.leader.rewind(known, 10)
                    both.solo.rewind(known, 10)
                    kinds.add("rewind")
                else:
                    leader.destroy(known)
                    both.solo.destroy(known)
                    open_ids.remove(known)
                    open_ids.append(both.create(CTX))
                    kinds.add("destroy")
                continue
            draw = choose.random()
            fresh = [choose.randrange(32) for _ in range(choose.randint(1, 12))]
            if draw < 0.35:
                both.eval(known, fresh[0])
                kinds.add("eval")
                done += 1
            elif draw < 0.55:
                ready = [i for i in open_ids if len(both.held(i)) < CTX - 20]
                if len(ready) > 1:
                    both.batch(*((i, choose.randrange(32)) for i in ready))
                    kinds.add("batch")
                    done += len(ready)
            elif draw < 0.75:
                drafts = fresh[:8]
                mode = choose.choice((REPLAY, KEEP_ALL, KEEP_PREFIX))
                most = min(len(drafts) - 1, 4)
                if mode == KEEP_PREFIX and most < 1:
                    mode = KEEP_ALL
                count = {
                    REPLAY: choose.randint(0, len(drafts)),
                    KEEP_ALL: 0,
                    KEEP_PREFIX: choose.randint(1, max(most, 1)),
                }[mode]
                both.verify(known, drafts, mode, count)
                kinds.add(f"verify {mode}")
                done += len(drafts) if mode == KEEP_ALL else count
            elif draw < 0.9:
                both.sync(known, [*held, *fresh])
                kinds.add("sync")
                done += len(fresh)
            elif draw < 0.95 and leader.may_mix(known, [*held, *fresh]):
                other = next(i for i in open_ids if i != known)
                if len(both.held(other)) < CTX - 1:
                    both.mixed(known, [*held, *fresh], (other, fresh[0]))
                    kinds.add("mixed")
                    done += len(fresh) + 1
            elif dialect == "v14":
                assert leader.sync(known, [*held, *fresh], cancel=lambda: True) is None
                both.solo.invalidate(known)
                kinds.add("cancel")
    assert found.worker_error is None
    wanted = {"eval", "batch", "sync", "mixed", "rewind", "destroy"}
    wanted |= {f"verify {mode}" for mode in (0, 1, 2)}
    assert kinds >= wanted | ({"cancel"} if dialect == "v14" else set())
