import os


def main(args):
    names = sorted(name for name in os.environ if name.startswith("CONFORMANCE_"))
    return {"names": names, "same": os.environ.get("CONFORMANCE_GRANTED") == args["value"]}
