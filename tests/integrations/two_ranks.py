"""Two forked ranks train in each framework; as a script it ends with 0 where all of them equal plain ranks."""

import logging
import os
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import transformers
from accelerate import Accelerator
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from transformers import TrainingArguments

from fcco.integrations.accelerate import register
from fcco.integrations.lightning import SolverModule
from fcco.integrations.transformers import SolverTrainer
from tests.helpers.same import assert_same
from tests.integrations.cases import EPOCH, make_objective, make_parts, outcome, plain_run

CUT, EPOCHS = EPOCH + 2, 2
PORT = "29500"  # asked for by the environment, used by nobody: the ranks meet in a file


class Ranker(SolverModule):
    def __init__(self, name):
        super().__init__()
        self.name, self.objective = name, make_objective()

    def configure_optimizers(self):
        self.solver, self.loader = make_parts(self.objective, self.name)
        return self.solver.optimizer


def by_lightning(name, folder, resume):
    saves = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    ranks = {"devices": 2, "strategy": "ddp", "plugins": [TorchElasticEnvironment()]}
    module, trainer = Ranker(name), pl.Trainer(max_epochs=EPOCHS, callbacks=[saves], **quiet, **ranks)
    trainer.fit(module, ckpt_path=folder / f"step={CUT}.ckpt" if resume else None)
    return module.solver


def by_transformers(name, folder, resume):
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    settings = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "ddp_backend": "gloo", "save_steps": 1}
    args = TrainingArguments(str(folder), num_train_epochs=EPOCHS, **quiet, **settings)
    trainer = SolverTrainer(*make_parts(make_objective(), name), args)
    torch.manual_seed(3)  # Trainer sets a seed when it is made
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{CUT}") if resume else None)
    return trainer.solver


def by_accelerate(name, folder, resume):
    """The network is a DDP module here: the solver keeps its gradients to itself and reduces them once."""
    accelerator, objective = Accelerator(cpu=True), make_objective()
    objective.model = accelerator.prepare(objective.model)
    solver, loader = make_parts(objective, name)
    register(accelerator, solver, loader)
    if resume:
        accelerator.load_state(str(folder / str(CUT)))
    while solver.t < EPOCHS * EPOCH:
        for batch in loader:
            solver.step(batch)
            accelerator.save_state(str(folder / str(solver.t)))
    return solver


def figures(solver):
    """Without the names, which DDP changes, and without the buffers, which it may take from rank 0."""
    found = outcome(solver)
    return found | {"objective": [p.detach().clone() for p in solver.parameters]}


def rank(number, folder):
    warnings.simplefilter("ignore")  # the frameworks' own; the tests of one rank look at them
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT, GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    for name in ("msvr-v2", "memory"):
        wanted = figures(plain_run(name, EPOCHS))
        for run in (by_lightning, by_transformers, by_accelerate):
            place = Path(folder) / name / run.__name__
            assert_same(wanted, figures(run(name, place, resume=False)))
            if run is by_transformers and transformers.__version__.startswith("4."):
                continue  # which cannot read its own optimizer's file on ranks without an accelerator
            assert_same(wanted, figures(run(name, place, resume=True)))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    mp.start_processes(rank, args=(sys.argv[1],), nprocs=2, start_method="fork")
