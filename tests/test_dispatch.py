"""Every choice of a method, at and around the threshold that decides it."""

import ast
import itertools
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from wtfarray import _dispatch
from wtfarray._dispatch import THRESHOLDS, NewtonRule

CASES = [
    ("chunk_size", (10**6, 10**9), {}, 2**22 // 1000),
    ("chunk_size", (3, 3 * 2**30), {}, 1),
    ("batch_of_chunk", (4096, 2**22, 0), {"in_cache": True}, 32),
    ("batch_of_chunk", (4096, 2**22, 2**20), {"in_cache": True}, 128),
    ("batch_of_chunk", (4096, 2**22, 0), {"in_cache": False}, 128),
    ("batch_of_chunk", (5, 5000, 0), {"in_cache": True}, 1),
    ("projected_at_once", (4096,), {}, 128),
    ("projected_at_once", (5,), {}, 1),
    ("iterates_in_machine_code", (2**13, 128), {}, True),
    ("iterates_in_machine_code", (2**13 - 1, 128), {}, False),
    ("iterates_in_machine_code", (2**20, 129), {}, False),
    ("falls_back_to_newton", (64, 4.01, 1.0), {"balanced": False}, True),
    ("falls_back_to_newton", (64, 4.0, 1.0), {"balanced": False}, False),
    ("falls_back_to_newton", (65, 9.0, 1.0), {"balanced": False}, False),
    ("falls_back_to_newton", (64, 9.0, 1.0), {"balanced": True}, False),
    ("falls_back_to_newton", (65, 8.01, 1.0), {"balanced": True}, True),
    ("falls_back_to_newton", (65, 8.0, 1.0), {"balanced": True}, False),
    ("leaves_outliers_to_sinkhorn", (65, 16.0, 8.0, 32.0, 1.0), {}, True),
    ("leaves_outliers_to_sinkhorn", (64, 16.0, 0.5, 32.0, 1.0), {}, False),
    ("leaves_outliers_to_sinkhorn", (65, 16.0, 8.01, 32.0, 1.0), {}, False),
    ("leaves_outliers_to_sinkhorn", (65, 16.0, 8.0, 32.01, 1.0), {}, False),
    ("leaves_outliers_to_sinkhorn", (65, 16.01, 8.0, 32.0, 1.0), {}, False),
    ("leaves_outliers_to_sinkhorn", (65, 0.8, 0.4, 1.6, 0.05), {}, True),
    ("prefers_newton", (16, 4.01, 1.0), {"balanced": False}, True),
    ("prefers_newton", (16, 4.0, 1.0), {"balanced": False}, False),
    ("prefers_newton", (17, 16.0, 1.0), {"balanced": False}, False),
    ("prefers_newton", (64, 16.01, 1.0), {"balanced": False}, True),
    ("prefers_newton", (65, 1e9, 1.0), {"balanced": False}, False),
    ("prefers_newton", (16, 0.4, 0.05), {"balanced": False}, True),
    ("prefers_newton", (64, 1.01, 1.0), {"balanced": True}, True),
    ("prefers_newton", (64, 1.0, 1.0), {"balanced": True}, False),
    ("prefers_newton", (65, 8.0, 1.0), {"balanced": True}, False),
    ("prefers_newton", (256, 8.01, 1.0), {"balanced": True}, True),
    ("prefers_newton", (257, 1e9, 1.0), {"balanced": True}, False),
    ("newton_batch", (64,), {}, 8),
    ("band_blocks", (640, 10), {}, 10),
    ("band_blocks", (640, 128), {}, 5),
    ("band_blocks", (63, 3), {}, 1),
    ("most_work", (2**10,), {}, 50_000),
    ("most_work", (2**10 + 1,), {}, math.inf),
    ("straggler_batch", (1, 60), {"compiles": False}, 1),
    ("straggler_batch", (33, 60), {"compiles": False}, 64),
    ("straggler_batch", (3, 60), {"compiles": True}, 64),  # 35 samples have 2^11 entries
    ("straggler_batch", (65, 60), {"compiles": True}, 256),
    ("straggler_batch", (3, 1024), {"compiles": True}, 4),
    ("straggler_batch", (5, 1024), {"compiles": True}, 16),
    ("newton_batch", (181,), {}, 1),
    ("newton_batch", (513,), {}, 1),
    ("newton_batch", (1,), {}, 2**15),
    ("separates_stragglers", (8, 256), {}, True),
    ("separates_stragglers", (7, 512), {}, False),
    ("separates_stragglers", (8, 255), {}, False),  # fewer than 2^11 entries
    ("separates_stragglers", (10**6, 256), {}, True),
    ("separates_stragglers", (255, 257), {}, True),
    ("separates_stragglers", (256, 257), {}, False),
    ("solves_on_support", (1, 0.049), {}, True),
    ("solves_on_support", (1, 0.05), {}, False),
    ("solves_on_support", (2, 0.0), {}, False),
    ("solves_on_sample_supports", (10, 1, 32, 32, 1000), {}, True),
    ("solves_on_sample_supports", (10, 1, 33, 33, 1000), {}, False),
    ("solves_on_sample_supports", (10, 0, 0, 0, 1000), {}, False),
    ("solves_on_sample_supports", (1, 1, 1, 1, 1000), {}, False),
    ("solves_on_sample_supports", (10, 10, 40, 4, 801), {}, True),
    ("solves_on_sample_supports", (10, 10, 40, 4, 800), {}, False),  # a share of 0.05
    ("solves_on_sample_supports", (10, 10, 40, 5, 801), {}, False),  # 50 > 4 * 10 arrays
    ("batch_size", (10, 2**20, 1), {"in_cache": False}, 10),
    ("batch_size", (10, 2**21 - 1, 1), {"in_cache": False}, 10),
    ("batch_size", (10, 2**21, 1), {"in_cache": False}, 5),
    ("batch_size", (10, 2**22, 1), {"in_cache": False}, 3),
    ("batch_size", (10, 2**30, 1), {"in_cache": False}, 3),
    ("batch_size", (1, 2**30, 1), {"in_cache": False}, 1),
    ("batch_size", (16, 2**15, 1), {"in_cache": True}, 16),
    ("batch_size", (16, 2**16, 1), {"in_cache": True}, 8),
    ("batch_size", (16, 2**19, 1), {"in_cache": True}, 1),
    ("batch_size", (16, 2**30, 1), {"in_cache": True}, 1),
    ("batch_size", (1, 1, 1), {"in_cache": True}, 1),
    ("batch_size", (16, 2**18, 2**16), {"in_cache": True}, 4),  # no smaller than the kernel
    ("batch_size", (10, 2**21, 2**30), {"in_cache": False}, 5),
    ("fused_batch_size", (10, 2**17 - 1), {}, 10),
    ("fused_batch_size", (10, 2**17), {}, 5),
    ("fused_batch_size", (10, 2**30), {}, 3),
    ("certificate_batch", (8, 2**16), {}, 8),
    ("certificate_batch", (8, 2**17), {}, 4),
    ("certificate_batch", (8, 2**30), {}, 1),
    ("certificate_batch", (8, 2**18), {"queued": True}, 8),
    ("certificate_batch", (8, 2**19), {"queued": True}, 4),
    ("keeps_both_layouts", (256,), {}, True),
    ("keeps_both_layouts", (257,), {}, False),
    ("sums_over_pairs", (1, 256), {}, True),
    ("sums_over_pairs", (1, 257), {}, False),
    ("sums_over_pairs", (2, 256), {}, False),
    ("follows_with_prox_linear", (2**16,), {}, True),
    ("follows_with_prox_linear", (2**16 + 1,), {}, False),
    ("forms_linear_maps", (2**9, 256), {}, True),
    ("forms_linear_maps", (2**9 + 1, 256), {}, False),
    ("forms_linear_maps", (1, 257), {}, False),
    ("tries_to_escape", (2**10, 2), {}, True),
    ("tries_to_escape", (2**10 + 1, 2), {}, False),
    ("tries_to_escape", (2**10, 1), {}, False),
    ("refinement_steps", (2**16, 2, 40, 1e-5), {}, 100),
    ("refinement_steps", (2**16, 2, 140, 1e-5), {}, 140),
    ("refinement_steps", (2**16 + 1, 2, 40, 1e-5), {}, 40),
    ("refinement_steps", (2**16, 2, 40, 1.1e-5), {}, 0),
    ("refinement_steps", (2**16, 1, 40, 1e-5), {}, 0),
    ("keeps_history", (20_000_000,), {}, True),
    ("keeps_history", (20_000_001,), {}, False),
    ("checks_flow", (2, 256), {}, True),
    ("checks_flow", (2, 257), {}, False),
    ("can_be_halved", (28,), {}, True),
    ("follows_support", (70, 10, 100, 10), {}, True),
    ("follows_support", (71, 10, 100, 10), {}, False),
    ("follows_support", (70, 11, 100, 10), {}, False),
    ("can_be_halved", (31,), {}, False),
    ("can_be_halved", (26,), {}, False),
    ("can_be_halved", (33,), {}, False),
    ("is_fine_enough", (0.02, 0.01), {}, True),
    ("is_fine_enough", (0.021, 0.01), {}, False),
    ("default_start", (0.5,), {}, "kl"),
    ("default_start", (0.49,), {}, "random"),
    ("kl_sweeps", (10, 2, 800, 100), {}, 300),
    ("kl_sweeps", (50, 3, 64, 100), {}, 109),
    ("kl_sweeps", (500, 3, 64, 100), {}, 20),
    ("kl_sweeps", (10, 2, 0, 100), {}, 20),
    ("kl_sweeps", (10, 2, 800, 2**24), {}, 300),
    ("kl_sweeps", (10, 2, 800, 2**24 + 1), {}, 20),
    ("fit_levels", ("random", 100.0), {}, (27.0, 9.0, 3.0, 1.0)),
    ("fit_levels", ("random", 9.0), {}, (9.0, 3.0, 1.0)),
    ("fit_levels", ("random", 8.9), {}, (3.0, 1.0)),
    ("fit_levels", ("kl", 100.0), {}, (3.0, 1.0)),
    ("fit_levels", (None, 100.0), {}, (3.0, 1.0)),
    ("fit_levels", (None, 0.0), {}, (1.0,)),
    ("coarsest_level", (1.0, 0.05), {}, 2.0),
    ("smoothing_levels", (1.0, 1.0), {}, (1.0,)),
    ("smoothing_levels", (1.0, 0.1 / 2.9), {}, (1.0,)),
    ("smoothing_levels", (1.0, 0.1 / 3.1), {}, (3.0, 1.0)),
    ("smoothing_levels", (1.0, 0.1 / 10.0), {}, (9.0, 3.0, 1.0)),
    ("may_use_exp", (1e5, 1.0, 1e-16), {}, True),
    ("may_use_exp", (1.01e5, 1.0, 1e-16), {}, False),
    ("may_use_exp", (1e5, 0.99, 1e-16), {}, False),
]


@pytest.mark.parametrize(("name", "numbers", "options", "expected"), CASES)
def test_choices_change_at_their_thresholds(name, numbers, options, expected):
    assert getattr(_dispatch, name)(*numbers, **options) == expected


def test_every_function_has_cases():
    tree = ast.parse(Path(_dispatch.__file__).read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions == {name for name, *_ in CASES}


# A threshold, another value for it, and a choice that this turns into what is expected.
FIELDS = [
    ("newton", (NewtonRule(8, 0.5),), "prefers_newton", (8, 1.0, 1.0), {"balanced": False}, True),
    ("newton", (), "prefers_newton", (8, 1e9, 1.0), {"balanced": False}, False),
    ("band_rows", 32, "band_blocks", (640, 10), {}, 20),
    ("small_entries", 10, "most_work", (11,), {}, math.inf),
    ("small_work", 7, "most_work", (11,), {}, 7),
    ("refine_tol", 1e-3, "refinement_steps", (8, 2, 4, 1e-4), {}, 100),
    ("refine_entries", 8, "refinement_steps", (9, 2, 4, 1e-5), {}, 4),
    ("refine_steps", 7, "refinement_steps", (8, 2, 4, 1e-5), {}, 7),
    (
        *("newton_balanced", (NewtonRule(9, 99.0),)),
        *("prefers_newton", (9, 9.0, 1.0), {"balanced": True}, False),
    ),
    (
        *("newton_fallback", NewtonRule(9, 99.0)),
        *("falls_back_to_newton", (9, 50.0, 1.0), {"balanced": False}, False),
    ),
    ("outlier_bins", 65, "leaves_outliers_to_sinkhorn", (65, 16.0, 8.0, 32.0, 1.0), {}, False),
    ("outlier_spacing", 9.0, "leaves_outliers_to_sinkhorn", (65, 10.0, 8.0, 32.0, 1.0), {}, False),
    ("outlier_range", 33.0, "leaves_outliers_to_sinkhorn", (65, 9.0, 8.0, 33.0, 1.0), {}, True),
    ("newton_entries", 12, "newton_batch", (2,), {}, 3),
    ("fused_entries", 10, "iterates_in_machine_code", (10, 3), {}, True),
    ("fused_rows", 200, "iterates_in_machine_code", (2**13, 200), {}, True),
    ("fused_batch_entries", 10, "fused_batch_size", (4, 20), {}, 2),
    ("straggler_samples", 2, "separates_stragglers", (2, 2**11), {}, True),
    ("straggler_least", 24, "separates_stragglers", (8, 3), {}, True),
    ("straggler_bins", 300, "separates_stragglers", (256, 300), {}, True),
    ("straggler_entries", 2**20, "separates_stragglers", (256, 300), {}, True),
    ("sparse_share", 0.9, "solves_on_support", (1, 0.8), {}, True),
    ("sparse_share", 0.9, "solves_on_sample_supports", (2, 2, 4, 2, 5), {}, True),
    ("sparse_sample_points", 1, "solves_on_sample_supports", (9, 9, 18, 2, 9999), {}, False),
    ("cached_entries", 10, "batch_size", (4, 20, 1), {"in_cache": True}, 2),
    ("batch_entries", 10, "batch_size", (4, 20, 1), {"in_cache": False}, 2),
    ("batches", 2, "batch_size", (4, 2**30, 1), {"in_cache": False}, 2),
    ("certificate_entries", 6, "certificate_batch", (4, 12), {}, 2),
    ("queued_certificate_entries", 6, "certificate_batch", (4, 12), {"queued": True}, 2),
    ("flow_entries", 17, "checks_flow", (2, 3), {}, False),
    ("layout_rows", 3, "keeps_both_layouts", (4,), {}, False),
    ("pair_entries", 17, "sums_over_pairs", (2, 3), {}, False),
    ("prox_linear_entries", 5, "follows_with_prox_linear", (6,), {}, False),
    ("linear_map_columns", 3, "forms_linear_maps", (1, 4), {}, False),
    ("linear_map_entries", 7, "forms_linear_maps", (2, 4), {}, False),
    ("escape_entries", 5, "tries_to_escape", (6, 2), {}, False),
    ("chunk_entries", 2**10, "chunk_size", (100, 2**17), {}, 1),
    ("chunk_batches", 4, "batch_of_chunk", (4096, 2**22, 0), {"in_cache": False}, 1024),
    ("history_entries", 5, "keeps_history", (6,), {}, False),
    ("support_share", 0.5, "follows_support", (60, 10, 100, 10), {}, False),
    ("support_rows", 2.0, "follows_support", (70, 20, 100, 10), {}, True),
    ("coarsest_mode", 2, "can_be_halved", (4,), {}, True),
    ("grid_spacing", 3.0, "is_fine_enough", (0.03, 0.01), {}, True),
    ("dense_share", 0.1, "default_start", (0.2,), {}, "kl"),
    ("least_sweeps", 5, "kl_sweeps", (10, 2, 0, 100), {}, 5),
    ("most_sweeps", 40, "kl_sweeps", (10, 2, 800, 100), {}, 40),
    ("sweep_budget", 60.0, "kl_sweeps", (50, 3, 64, 100), {}, 54),
    ("sweep_entries", 50, "kl_sweeps", (10, 2, 800, 100), {}, 20),
    ("blurred_cost", 1.0, "coarsest_level", (1.0, 0.25), {}, 4.0),
    ("level_ratio", 2.0, "smoothing_levels", (1.0, 0.02), {}, (4.0, 2.0, 1.0)),
    ("exponent_error", 1.0, "may_use_exp", (1e10, 1.0, 1e-16), {}, True),
]


@pytest.mark.parametrize(("field", "value", "name", "numbers", "options", "expected"), FIELDS)
def test_threshold_decides(monkeypatch, field, value, name, numbers, options, expected):
    choose = getattr(_dispatch, name)
    assert choose(*numbers, **options) != expected
    monkeypatch.setattr(_dispatch, "THRESHOLDS", replace(THRESHOLDS, **{field: value}))
    assert choose(*numbers, **options) == expected


def test_every_threshold_decides_something():
    assert {field.name for field in fields(THRESHOLDS)} == {field for field, *_ in FIELDS}


def test_levels_end_at_one_and_start_below_the_coarsest():
    for eps in (1e-6, 1e-3, 0.02, 0.5, 30.0):
        levels = _dispatch.smoothing_levels(1.0, eps)
        assert levels[-1] == 1.0
        assert levels[0] <= max(1.0, _dispatch.coarsest_level(1.0, eps)) * (1.0 + 1e-12)
        ratios = [a / b for a, b in itertools.pairwise(levels)]
        assert all(math.isclose(ratio, THRESHOLDS.level_ratio) for ratio in ratios)


def test_module_imports_nothing_of_the_library():
    tree = ast.parse(Path(_dispatch.__file__).read_text(encoding="utf-8"))
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    relative = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level > 0]
    assert imported == {"math", "dataclasses", "typing"}
    assert not relative
