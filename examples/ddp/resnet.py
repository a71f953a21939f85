"""ResNet-18 on Fashion-MNIST: resnet.py, and ddp/resnet.py with DistributedDataParallel.

tributary run --servers 1 --nodes 1 --ranks-per-node 2 -- python examples/resnet.py
PYTHONPATH=examples torchrun --nproc-per-node 2 examples/ddp/resnet.py
"""

import torch
import torch.distributed as dist
from fashion_resnet import accuracy, arguments, fashion_mnist, resnet18
from rank_device import rank_device
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

args = arguments()
dist.init_process_group("gloo")
torch.set_num_threads(1)
device = rank_device()
data, test = (fashion_mnist(args.data, part, args.samples) for part in ("train", "t10k"))
model = resnet18().to(device, memory_format=torch.channels_last)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
model = DistributedDataParallel(model)
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, args.epochs * len(loader), cycle_momentum=False)
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        opt.step()
        sched.step()
        opt.zero_grad()
        if dist.get_rank() == 0:
            print(f"loss {loss:.3f}")
    print(f"epoch {epoch}: test accuracy {accuracy(model, test, device):.3f}")
dist.destroy_process_group()
