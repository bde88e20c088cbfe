"""``torchrun -m ds4proto_runtime.dist``."""

from ds4proto_runtime.dist.stage import run

if __name__ == "__main__":
    run()
