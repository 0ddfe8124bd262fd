"""What devices exchange is read from HLO text."""

import pytest

from jaxpr_opt.testing.collectives import Collective, Traffic, collectives, traffic

HLO = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%inner (p: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %p = (s32[], bf16[8,4]{1,0}) parameter(0)
  %g = bf16[8,4]{1,0} all-gather(%x), channel_id=1, dimensions={0}
  ROOT %t = (s32[], bf16[8,4]{1,0}) tuple(%i, %g)
}

%outer (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %w = (s32[], bf16[8,4]{1,0}) while(%z), condition=%go, body=%inner
  %r = f32[4]{0} all-reduce(%x), channel_id=2, to_apply=%add
  %s = (f32[4]{0}, pred[3]{0}) collective-permute-start(%x), channel_id=3
  %d = f32[4]{0} collective-permute-done(%s)
  ROOT %t = (s32[], f32[4]{0}) tuple(%i, %r)
}

%taken (p: f32[4]) -> f32[4] {
  ROOT %b = f32[4]{0} all-to-all(%p), channel_id=4
}

ENTRY %main.4_spmd (x: f32[4]) -> f32[4] {
  %w = (s32[], f32[4]{0}) while(%z), condition=%go, body=%outer, backend_config={"known_trip_count":{"n":"50"}}
  ROOT %c = f32[4]{0} conditional(%p, %a, %b), branch_computations={%add, %taken}
}
"""  # noqa: E501


def test_collectives_in_loops_and_branches():
    assert collectives(HLO, unknown_steps=3) == [
        Collective("all-gather", 64, 150),
        Collective("all-reduce", 16, 50),
        Collective("collective-permute", 19, 50),
        Collective("all-to-all", 16, 1),
    ]
    assert traffic(HLO) == Traffic(50 * 3 + 1, 50 * (64 + 16 + 19) + 16)


def test_text_that_is_no_program():
    with pytest.raises(ValueError, match="hlo has no ENTRY computation"):
        collectives("f32[4]")
