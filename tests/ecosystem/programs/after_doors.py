"""Put after the fragments of docs/torch_engines.md: the same in one process, on every rank."""
# ruff: noqa: F821  what the fragments have made

from transformers import AutoModelForCausalLM


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def trained_alone() -> dict[str, Tensor]:
    torch.manual_seed(0)
    alone = torch.nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    ours = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    nn.functional.cross_entropy(alone(inputs), targets).backward()
    ours.step()
    return alone.state_dict()


whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
with torch.no_grad():
    close(model(prompt).logits, whole(prompt).logits)
assert answer.tolist() == whole.generate(prompt, max_new_tokens=8, do_sample=False).tolist()
assert type(model.model.layers[0].self_attn.q_proj.weight).__name__ == "DTensor"

for name, value in trained_alone().items():
    close(network.state_dict()[name].full_tensor(), value)
    close(restored["network"][name].full_tensor(), value)
close(products, inputs.T @ inputs)
if rank == 1:
    torch.manual_seed(1)
    both = nn.Sequential(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 4))
    close(torch.stack(losses).mean(), nn.functional.cross_entropy(both(inputs), targets))

torch.manual_seed(2)
linear = nn.Linear(8, 4)
nn.functional.cross_entropy(linear(inputs[kept]), targets[kept]).backward()
close(ddp.module.weight.grad, linear.weight.grad)
torch.manual_seed(2)
means = DistributedDataParallel(nn.Linear(8, 4))
nn.functional.cross_entropy(means(inputs[share][mine]), targets[share][mine]).backward()
error = (means.module.weight.grad - linear.weight.grad).norm() / linear.weight.grad.norm()
assert error > 1e-3
sys.stdout.write(f"rank {rank} of {size}: all as one process; by means {error:.4f} off\n")
dist.destroy_process_group()
