package host

import (
	"context"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// carriersQueued is how many notices wait for who takes them: two of each interface of a machine that has many.
const carriersQueued = 256

// WatchCarriers says of each interface of this network namespace when it can carry packets and when it no longer can, as soon as the
// kernel does, and the same again when something else of it changed. It is for who cannot wait until everything was looked at
// anew; notices may be lost when many come at once, and [WatchLinks] tells of them all the same. The channel is closed when
// ctx ends, or when the kernel's notices cannot be read any more (which is logged).
func WatchCarriers(ctx context.Context) (<-chan Carrier, error) {
	out := make(chan Carrier, carriersQueued)
	take := func(msgs []syscall.NetlinkMessage) {
		for _, m := range msgs {
			if c, ok := carrierOf(m); ok {
				select {
				case out <- c:
				default:
				}
			}
		}
	}
	err := notices(ctx, "interfaces that go down will be noticed late", take, func() { close(out) }, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// carrierOf reads a message of the kernel's about an interface.
func carrierOf(m syscall.NetlinkMessage) (Carrier, bool) {
	if m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK || len(m.Data) < unix.SizeofIfInfomsg {
		return Carrier{}, false
	}
	info := nl.DeserializeIfInfomsg(m.Data)
	if info.Family != unix.AF_UNSPEC {
		return Carrier{}, false // a bridge tells of its ports
	}
	return Carrier{Index: int(info.Index), Up: m.Header.Type == unix.RTM_NEWLINK && isUp(info.Flags)}, true
}

// isUp reports whether an interface with these IFF_ flags can carry packets.
func isUp(flags uint32) bool {
	return flags&(unix.IFF_UP|unix.IFF_RUNNING) == unix.IFF_UP|unix.IFF_RUNNING
}
