"""Time of a call in a CUDA graph, for the scripts beside this one."""
import torch


def microseconds(call, n, stream=None):
    """Of one of n calls in a graph; the median of five replays. A backward runs on its forward's stream, which is to be given then."""
    stream = stream or torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(n):
            call()
    graph.replay()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(5):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / n)
    return sorted(times)[2]
