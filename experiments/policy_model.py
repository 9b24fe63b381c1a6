"""The code of the MLflow model of a policy ("models from code"): MLflow runs this file to load it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from dalton.agents.export import Policy


class PolicyModel(PythonModel):
    """Workers of key ids, in the order of the rows, by the frozen policy; every call begins anew."""

    policy: Policy

    def load_context(self, context: PythonModelContext) -> None:
        """Read the policy's file."""
        self.policy = Policy.load(context.artifacts["policy"])

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """A column ``worker`` for the column ``key``."""
        del context, params
        keys = model_input["key"].to_numpy(np.int64)
        return pd.DataFrame({"worker": self.policy.partitioner().route(keys)})


set_model(PolicyModel())
