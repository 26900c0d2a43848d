"""The entry point of the program `cclf`. It imports nothing before Ctrl-C is handled."""


def main() -> int:
    try:
        from cclf.cli import main as run

        return run()
    except KeyboardInterrupt:
        import contextlib
        import os

        with contextlib.suppress(OSError):  # standard error may be closed or full
            os.write(2, b"cclf: interrupted\n")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
