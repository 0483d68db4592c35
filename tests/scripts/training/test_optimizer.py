import pytest
import torch
from torch import nn

from stream_recon.models.layers import Block
from training.flat import AveragedWeights, FlatParameters
from training.optimizer import Optimizer, OptimizerConfig, group_parameters, orthogonalise


class Regression(nn.Module):
    """A block (for Muon) and a plain layer (for AdamW)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = Block(16, 2, 2.0, qk_norm=True, eps=1e-5, layer_scale=0.1)
        self.out = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.block.project(x, None, None)
        return self.out(self.block.finish(x, q * k + v))  # type: ignore[no-any-return]


def make(config: OptimizerConfig | None = None) -> tuple[Regression, FlatParameters, Optimizer]:
    model = Regression()
    parameters = FlatParameters(group_parameters(model))
    return model, parameters, Optimizer(parameters, config or OptimizerConfig())


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 64, 16), (2, 16, 48)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    singular = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert singular.min() > 0.4 and singular.max() < 1.4


def test_orthogonalising_keeps_the_singular_vectors_and_forgets_the_length() -> None:
    torch.manual_seed(0)
    u, _, vt = torch.linalg.svd(torch.randn(1, 12, 12))
    x = u @ torch.diag_embed(torch.linspace(0.5, 1.5, 12)[None]) @ vt
    y = orthogonalise(x)
    inner = u.transpose(1, 2) @ y @ vt.transpose(1, 2)
    assert (inner - torch.diag_embed(inner.diagonal(dim1=1, dim2=2))).abs().max() < 0.05
    assert torch.allclose(orthogonalise(100 * x), y, atol=1e-3)


def test_flat_parameters_keep_the_modules_function_and_place_equal_shapes_together() -> None:
    model = Regression()
    x = torch.randn(5, 4, 16)
    before = model(x)
    parameters = FlatParameters(group_parameters(model))
    assert torch.equal(model(x), before)
    with torch.no_grad():
        parameters.values.zero_()
    assert not model(x).any()
    for group in parameters.segments:
        for segment in group:
            assert segment.start % 4 == 0
            assert segment.view(parameters.values).shape == (segment.count, *segment.shape)


def test_each_parameter_is_in_exactly_one_group_and_block_matrices_are_muons() -> None:
    model = Regression()
    matrices, decayed, undecayed = group_parameters(model)
    assert sorted(map(id, [*matrices, *decayed, *undecayed])) == sorted(map(id, model.parameters()))
    block = model.block
    weights = (block.attn.qkv.weight, block.attn.proj.weight, block.mlp.fc1.weight, block.mlp.fc2.weight)
    assert {id(p) for p in matrices} == {id(p) for p in weights}
    assert [id(p) for p in decayed] == [id(model.out.weight)]


def test_gradients_are_collected_where_their_parameters_lie() -> None:
    model, parameters, _ = make()
    model(torch.randn(2, 3, 16)).square().sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    named = parameters.named(model, parameters.collect_gradient())
    assert expected and all(torch.equal(named[name], gradient) for name, gradient in expected.items())
    assert all(p.grad is None for p in model.parameters())
    parameters.collect_gradient()
    assert not parameters.gradient.any()


def test_the_loss_of_a_regression_falls() -> None:
    model, parameters, optimizer = make()
    x, y = torch.randn(64, 4, 16), torch.randn(64, 4, 3) * 0.1
    history = []
    for _ in range(60):
        loss = (model(x) - y).square().mean()
        loss.backward()
        parameters.collect_gradient()
        optimizer.step(5e-3)
        history.append(float(loss.detach()))
    assert history[-1] < 0.2 * history[0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_with_a_broken_gradient_changes_nothing_then_or_later(bad: float) -> None:
    def train(broken_at: int | None) -> torch.Tensor:
        model, parameters, optimizer = make()
        for step in range(4):
            generator = torch.Generator().manual_seed(step)
            model(torch.randn(8, 2, 16, generator=generator)).square().mean().backward()
            if step == broken_at:
                before = parameters.values.clone()
                parameters.collect_gradient().view(-1)[7] = bad
                assert not optimizer.step(1e-2).isfinite()
                assert torch.equal(parameters.values, before)
            parameters.collect_gradient()
            if step != 2:
                optimizer.step(1e-2)
        return parameters.values

    assert torch.equal(train(broken_at=None), train(broken_at=2))


def test_long_gradients_are_clipped_and_their_true_length_is_told() -> None:
    def step(factor: float, limit: float) -> tuple[float, float]:
        _, parameters, optimizer = make(OptimizerConfig(max_gradient_norm=limit))
        parameters.gradient.copy_(torch.linspace(-1, 1, len(parameters.gradient)) * factor)
        norm = float(optimizer.step(1e-2))
        return norm, float(parameters.gradient.norm())

    norm, used = step(10.0, limit=0.5)
    assert norm > 10 and used == pytest.approx(0.5, rel=1e-3)
    norm, used = step(1e-4, limit=0.5)
    assert used == pytest.approx(norm)


def test_weight_decay_shrinks_arrays_and_spares_vectors() -> None:
    model, parameters, optimizer = make(OptimizerConfig(weight_decay=0.5))
    before = parameters.values.clone()
    optimizer.step(0.1)
    named, old = parameters.named(model, parameters.values), parameters.named(model, before)
    for name, value in named.items():
        factor = 1 - 0.1 * 0.5 if value.ndim > 1 else 1.0
        assert torch.allclose(value, factor * old[name], atol=1e-7), name


def test_average_starts_near_the_weights_and_then_lags() -> None:
    _, parameters, _ = make()
    average = AveragedWeights(parameters, decay=0.9)
    with torch.no_grad():
        parameters.values.add_(1.0)
    start = average.values.clone()
    average.update(0)
    assert torch.allclose(average.values - start, torch.tensor(1 - 1 / 20), atol=1e-5)
    with torch.no_grad():
        parameters.values.add_(1.0)
    moved = average.values.clone()
    average.update(10_000)
    assert torch.allclose(average.values, moved.lerp(parameters.values, 0.1), atol=1e-6)


def test_average_is_in_use_only_inside_its_context() -> None:
    model, parameters, _ = make()
    average = AveragedWeights(parameters, decay=0.9)
    own = parameters.values.clone()
    average.values.zero_()
    with average.in_use():
        assert not model.out.weight.any()
    assert torch.equal(parameters.values, own) and model.out.weight.any()
