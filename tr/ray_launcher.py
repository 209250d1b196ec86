"""A Hydra launcher over Ray's tasks.

The published one, hydra-ray-launcher 1.2, asks for cloudpickle below 3, joblib for 3 and above, so
that no environment holds both; it needs packages of a cloud's as well.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict


class RayLauncher(Launcher):
    """`init` are options of ray.init, `remote` those of ray.remote."""

    def __init__(self, init: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
        self.init, self.remote = init, remote

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        """Run every job; one whose process dies raises once the others have ended."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        setup_globals()
        init = plain(self.init)
        if init.get("address") == "auto":  # an existing cluster has its own resources
            init = {k: init[k] for k in ("address", "log_to_driver") if k in init}
        ray.init(**init)
        try:
            remote = ray.remote(**plain(self.remote))(execute)
            shared = (self.context, self.config, self.task, Singleton.get_state())
            pending = [
                remote.remote(initial_job_idx + i, list(overrides), *shared)
                for i, overrides in enumerate(job_overrides)
            ]
            ray.wait(pending, num_returns=len(pending))
            return ray.get(pending)
        finally:
            ray.shutdown()


def plain(options: Any) -> dict[str, Any]:
    """Options without those that are left open."""
    whole: Any = OmegaConf.to_container(OmegaConf.create(options))
    return {key: value for key, value in whole.items() if value is not None}


def execute(
    index: int,
    overrides: list[str],
    context: HydraContext,
    config: DictConfig,
    task: TaskFunction,
    state: dict[Any, Any],
) -> JobReturn:
    """One job in a process of Ray's."""
    setup_globals()
    Singleton.set_state(state)
    composed = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(composed):
        composed.hydra.job.id = composed.hydra.job.num = index
    return run_job(
        hydra_context=context,
        task_function=task,
        config=composed,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
