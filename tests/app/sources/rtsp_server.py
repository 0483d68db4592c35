"""RTSP server of GStreamer, run by the system's Python: ``rtsp_server.py PORT``. Prints a line when it listens.

Commands on stdin: ``stall`` stops sending, ``go`` sends again, ``close`` ends all sessions. It ends with stdin.
"""

import sys
import threading

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

PICTURES = (
    "( videotestsrc name=camera is-live=true pattern=smpte horizontal-speed=2 ! "
    "video/x-raw,format=I420,width=320,height=240,framerate=20/1 ! "
    "valve name=valve ! jpegenc ! rtpjpegpay name=pay0 pt=26 )"
)


def main() -> None:
    Gst.init(None)
    server = GstRtspServer.RTSPServer(service=sys.argv[1], address="127.0.0.1")
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(PICTURES)
    factory.set_shared(True)
    valves = []
    factory.connect("media-configure", lambda _, media: valves.append(media.get_element().get_child_by_name("valve")))
    server.get_mount_points().add_factory("/camera", factory)
    server.attach(None)
    loop = GLib.MainLoop()
    threading.Thread(target=listen, args=(server, valves, loop), daemon=True).start()
    print("listening", flush=True)
    loop.run()


def listen(server: GstRtspServer.RTSPServer, valves: list[Gst.Element], loop: GLib.MainLoop) -> None:
    for line in sys.stdin:
        GLib.idle_add(obey, line.strip(), server, valves)
    loop.quit()


def obey(word: str, server: GstRtspServer.RTSPServer, valves: list[Gst.Element]) -> bool:
    if word == "close":
        server.client_filter(lambda *_: GstRtspServer.RTSPFilterResult.REMOVE)
    else:
        for valve in valves:
            valve.set_property("drop", word == "stall")
    return False


if __name__ == "__main__":
    main()
