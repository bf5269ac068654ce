"""What the commands report of a running fit, and how they end when interrupted."""

import os
import signal
from pathlib import Path

import pytest
from command_line import QUICK, run
from helpers import numpy_only

import wtfarray as wtf
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray.cli._group import INTERRUPTED
from wtfarray.cli._report import Watch


@numpy_only
@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for another process on Windows")
class TestInterrupt:
    @pytest.mark.parametrize("times", [1, 2])
    def test_interrupted_fit_is_written_with_advice_to_resume(self, monkeypatch, times):
        """One interrupt lets the iteration finish; two return the best fit so far."""
        step = Watch.step

        def step_and_interrupt(watch, state):
            if state.n_iter == 3:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
            return step(watch, state)

        before = signal.getsignal(signal.SIGINT)
        monkeypatch.setattr(Watch, "step", step_and_interrupt)
        result = run("fit", "X.npy", *QUICK, "--tol", 1e-14)
        assert result.exit_code == INTERRUPTED
        assert "interrupted: the best so far" in " ".join(result.stdout.split())
        assert "add --init fit.npz" in result.stderr
        assert wtf.load("fit.npz").n_iter == 3
        assert signal.getsignal(signal.SIGINT) is before

    def test_second_interrupt_during_the_certificate_keeps_the_fit(self, monkeypatch):
        certify = FactorisationProblem.certify

        def certify_and_interrupt(problem, blocks, *rest):
            if len(rest) == 1:
                signal.raise_signal(signal.SIGINT)
            return certify(problem, blocks, *rest)

        def step_and_interrupt(watch, state):
            if state.n_iter == 2:
                signal.raise_signal(signal.SIGINT)
            return watch.interrupted

        monkeypatch.setattr(FactorisationProblem, "certify", certify_and_interrupt)
        monkeypatch.setattr(Watch, "step", step_and_interrupt)
        result = run("fit", "X.npy", *QUICK)
        assert result.exit_code == INTERRUPTED
        assert "interrupted: the best so far" in " ".join(result.stdout.split())
        assert wtf.load("fit.npz").n_iter == 2

    def test_interrupt_before_the_first_iteration_writes_nothing(self, monkeypatch):
        monkeypatch.setattr(wtf, "cp", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        monkeypatch.setattr(Watch, "_stop", signal.default_int_handler)
        result = run("fit", "X.npy", *QUICK)
        assert result.exit_code == INTERRUPTED
        assert "wtfarray: interrupted, nothing was written" in result.stderr
        assert not Path("fit.npz").exists()
