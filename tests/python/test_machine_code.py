"""The counting of machine code in ``kernels``: on pieces small enough to be counted by hand."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))
import build_ptx
import check_ptx
from machine_code import Cost, costs, in_flight, main_loop, split

#: Two loads a round, the first used before the second is issued; a branch round a rare block; a remainder with one
#: load.
LISTING = """
\t.section\t.nv.info,"",@"SHT_CUDA_INFO"
\t//----- nvinfo : EIATTR_REGCOUNT
\t.align\t\t4
.L_7:
        /*0004*/ \t.word\tindex@(lossfeed_score_bf16)
        /*0008*/ \t.word\t0x00000028
\t.section\t.text.lossfeed_score_bf16,"ax",@progbits
lossfeed_score_bf16:
.text.lossfeed_score_bf16:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P1 STL [R1], R4 ;
.L_x_1:
        /*0020*/                   LDG.E.128.CONSTANT R8, desc[UR8][R2.64] ;
        /*0030*/                   FADD R5, R5, R8 ;
        /*0040*/                   LDG.E.128.CONSTANT R12, desc[UR8][R2.64+0x200] ;
        /*0050*/                   BSSY B0, `(.L_x_3) ;
        /*0060*/              @!P0 BRA `(.L_x_2) ;
        /*0070*/                   MUFU.EX2 R7, R7 ;
        /*0080*/                   FMUL R5, R5, R7 ;
        /*0090*/                   FMUL R6, R6, R7 ;
.L_x_2:
        /*00a0*/                   BSYNC B0 ;
.L_x_3:
        /*00b0*/                   FADD R5, R5, R13 ;
        /*00c0*/                   IADD3 R2, R2, 0x400, RZ ;
        /*00d0*/               @P2 BRA `(.L_x_1) ;
.L_x_4:
        /*00e0*/                   LDG.E.128.CONSTANT R8, desc[UR8][R2.64] ;
        /*00f0*/                   FADD R5, R5, R8 ;
        /*0100*/               @P3 BRA `(.L_x_4) ;
        /*0110*/                   MEMBAR.SC.GPU ;
        /*0120*/                   MEMBAR.SC.SYS ;
        /*0130*/                   MEMBAR.ALL.SYS ;
        /*0140*/                   EXIT ;
.L_x_5:
        /*0150*/                   BRA `(.L_x_5);
\t.section\t.nv.shared.lossfeed_score_bf16,"",@nobits
        /*0000*/                   MEMBAR.SC.SYS ;
"""


def test_a_kernel_is_counted_as_by_hand():
    # The round: 2 loads, FADD, BSSY, BRA (taken), BSYNC, FADD, IADD3, BRA; 16 logits.
    expected = Cost(registers=40, spills=1, instructions_per_logit=round(9 / 16, 2), loads_in_flight=1, fences_gpu=1, fences_system=2)
    assert costs(LISTING) == {"score_bf16": expected}


def test_the_loop_with_the_most_loads_is_the_main_one_and_rare_blocks_are_gone_round():
    way = main_loop(split(LISTING)["lossfeed_score_bf16"])
    assert sum("LDG" in text for text in way) == 2 and not any("MUFU" in text for text in way)
    # What is not rare is counted: without the branch round it, the block costs its three instructions.
    straight = "\n".join(line for line in LISTING.splitlines() if "@!P0 BRA" not in line)
    assert len(main_loop(split(straight)["lossfeed_score_bf16"])) == len(way) + 2
    # An outer loop round the main one is not the main one.
    outer = LISTING.replace("        /*0110*/", "        /*0108*/                   @P4 BRA `(.L_x_1) ;\n        /*0110*/")
    assert main_loop(split(outer)["lossfeed_score_bf16"]) == way


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (["LDG.E.128 R8, [R2.64]", "LDG.E.128 R12, [R4.64]", "FADD R1, R1, R8", "FADD R1, R1, R15"], 2),
        (["LDG.E.128 R8, [R2.64]", "FADD R1, R1, R11", "LDG.E.128 R12, [R4.64]", "FADD R1, R1, R12"], 1),
        # The next round's loads, issued before this round's values are used up.
        (["FADD R1, R1, R8", "LDG.E.128 R8, [R2.64]", "FADD R1, R1, R12", "LDG.E.128 R12, [R2.64]", "IADD3 R2, R2, 0x1, RZ"], 2),
        (["@P0 LDG.E.256 R8, [R2.64]", "FADD R1, R1, R15"], 2),
        # A ring of copies to shared memory, of which two groups may be left under way.
        (["LDGSTS.E.BYPASS.128 [R4], [R2.64]", "LDGDEPBAR", "DEPBAR.LE SB0, 0x2", "LDS.128 R8, [R5]"], 3),
        (["LDG.E R8, [R2.64]", "FADD R1, R1, R8"], 0),
    ],
)
def test_loads_under_way_are_those_issued_and_not_used(way, expected):
    assert in_flight(way) == expected


KNOWN = Cost(40, 0, 9.5, 4, 2, 3)


@pytest.mark.parametrize(
    ("change", "is_worse"),
    [
        ({"registers": 41}, True),
        ({"spills": 2}, True),
        ({"instructions_per_logit": 9.56}, True),
        ({"loads_in_flight": 3}, True),
        ({"fences_system": 4}, True),
        ({"instructions_per_logit": None}, True),
        ({"registers": 39}, False),
        ({"instructions_per_logit": 9.0}, False),
        ({"loads_in_flight": 5}, False),
        ({"fences_gpu": 0}, False),
    ],
)
def test_a_change_for_the_worse_is_told_from_one_for_the_better_with_both_numbers(change, is_worse):
    key = ("score_bf16", "sm_90")
    now = replace(KNOWN, **change)
    (column, after), = change.items()
    worse, better = check_ptx.differences({key: KNOWN}, {key: now})
    said = [f"score_bf16 for sm_90: {column} {getattr(KNOWN, column)} -> {after}"]
    assert (worse, better) == ((said, []) if is_worse else ([], said))


def test_a_kernel_more_or_less_wants_a_new_table(tmp_path):
    one, other = ("score_bf16", "sm_90"), ("rank_sort", "sm_90")
    worse, better = check_ptx.differences({one: KNOWN}, {other: KNOWN})
    assert not worse and len(better) == 2
    table = {one: KNOWN, other: Cost(32, 0, None, None, 0, 0)}
    check_ptx.write(tmp_path / "table.csv", table)
    assert check_ptx.read(tmp_path / "table.csv") == table
    assert check_ptx.without_loop(table) == []
    assert check_ptx.without_loop({one: replace(KNOWN, loads_in_flight=None)}) == ["score_bf16 for sm_90: no loop with 16-byte loads"]


def test_the_committed_table_has_every_kernel_of_every_gpu_and_says_how_it_was_made():
    table = check_ptx.read(check_ptx.TABLE)
    gpus = {gpu for _, gpu in table}
    kernels = check_ptx.HERE
    assert gpus == {"sm_80", "sm_90", "sm_100", "sm_120"} == {file.name.split(".")[0] for file in kernels.glob("prebuilt/sm_*.cubin.zst")}
    # tests/kernels/prebuilt.rs holds this list to the images.
    listed = re.findall(r'^    "lossfeed_(\w+)",$', (kernels / "src" / "ptx.rs").read_text(), re.M)
    assert {kernel for kernel, _ in table} == set(listed) and len(table) == len(listed) * len(gpus)
    assert check_ptx.TABLE.read_text().startswith(check_ptx.MADE_BY + "\n")


@pytest.mark.parametrize("name", build_ptx.VARIANTS)
def test_a_variant_is_the_sources_with_something_else_in_one_place(name):
    words, tried = build_ptx.VARIANTS[name]
    text = build_ptx.variant(name).decode()
    assert tried in text and (words not in text or words in tried)
    assert all(kernel in text for kernel in ("score_##dtype, SCORES", "loss_bf16, LOSS", "lossfeed_backward_##dtype"))
    assert "smooth_##dtype" not in text and "(F64, " not in text


def test_a_variant_of_words_that_are_gone_is_refused(monkeypatch):
    monkeypatch.setitem(build_ptx.VARIANTS, "gone", ("no such words", ""))
    with pytest.raises(ValueError, match="no such words"):
        build_ptx.variant("gone")
