package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weft/lab/router"
	"weft/lab/vnet"
)

// A station is what a patchbay runs between two devices.
type station interface {
	Handle(now time.Time, from router.Leg, frame []byte)
	Poll(now time.Time) (next time.Time)
}

// WithLink impairs the leg of a host or router as the link says, in each direction. The zero link impairs nothing,
// but [Host.SetLink] may change it.
func WithLink(l vnet.LinkConfig) HostOption { return WithLinks(l, l) }

// WithLinks is WithLink for each direction: on the way out and on the way in.
func WithLinks(out, in vnet.LinkConfig) HostOption {
	return func(c *hostConfig) { c.link = &[2]vnet.LinkConfig{out, in} }
}

// WithAddrs gives a host, or a router outside, this IPv4 address of its network instead of the next in turn. A router
// of [Network.AddNATRouter] may have several.
func WithAddrs(list ...netip.Addr) HostOption { return func(c *hostConfig) { c.addrs = list } }

// bay is the lab's patchbay, made when it is first needed.
func (l *Lab) bay() (*patchbay, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("the lab %s is closed", l.id)
	}
	var err error
	if l.patchbay == nil {
		l.patchbay, err = newPatchbay()
	}
	return l.patchbay, err
}

// taps makes two devices and names their namespaces: by router.Leg.
func taps(inside, insideName, outside, outsideName string) (fds [2]int, err error) {
	open := func(namespace, name string) (fd int, err error) {
		err = enter(namespace, func() error {
			fd, err = openTAP(name)
			return err
		})
		return fd, err
	}
	if fds[router.Inside], err = open(inside, insideName); err != nil {
		return fds, err
	}
	if fds[router.Outside], err = open(outside, outsideName); err != nil {
		closeTAP(fds[router.Inside])
	}
	return fds, err
}

// A cable is an impaired leg: two TAP devices, and between them what the link does.
type cable struct {
	bay     *patchbay
	station *router.Cable
	out, in vnet.LinkConfig
	fd      int // of the host's device
}

// lay makes the host's leg of a cable.
func (h *Host) lay(out, in vnet.LinkConfig) error {
	bay, err := h.lab.bay()
	if err != nil {
		return err
	}
	var fds [2]int
	c := &cable{bay: bay, out: out, in: in}
	c.station, err = router.NewCable(out, seedOf(h.addr4), func(to router.Leg, frame []byte) { writeTAP(fds[to], frame) })
	if err == nil {
		err = c.station.SetLinks(out, in)
	}
	if err != nil {
		return err
	}
	if fds, err = taps(h.namespace, h.link, h.on.gateway, h.peer); err != nil {
		return err
	}
	h.cable, c.fd = c, fds[router.Inside]
	return bay.add(c.station, fds)
}

// seedOf lets accidents on different links differ, and repeat from run to run.
func seedOf(a netip.Addr) (seed uint64) {
	for _, b := range a.AsSlice() {
		seed = seed<<8 | uint64(b)
	}
	return seed
}

func (c *cable) remove() error { return c.bay.remove(c.station) }

func (c *cable) setUp(up bool) error { return c.setCut(!up, !up) }

func (c *cable) setCut(out, in bool) error {
	return c.bay.do(func() { c.station.SetCut(out, in) })
}

// errNoCable says that nothing can be done about a leg.
func (h *Host) errNoCable(what string) error {
	return fmt.Errorf("%s the link of %s: it was made without WithLink", what, h.Name)
}

// SetLink changes how the leg of a host, made [WithLink], is impaired, in both directions. Of a router of
// [Network.AddNATRouter] it is the way outside.
func (h *Host) SetLink(l vnet.LinkConfig) error { return h.SetLinks(l, l) }

// SetLinks changes it on the way out and on the way in.
func (h *Host) SetLinks(out, in vnet.LinkConfig) error {
	if h.cable == nil {
		return h.errNoCable("changing")
	}
	var err error
	if err = errors.Join(h.cable.bay.do(func() { err = h.cable.station.SetLinks(out, in) }), err); err != nil {
		return fmt.Errorf("changing the link of %s: %w", h.Name, err)
	}
	h.cable.out, h.cable.in = out, in
	return nil
}

// SetCut makes a black hole of the leg, on the way out, on the way in, or both: nobody is told. SetCut(false, false)
// mends it.
func (h *Host) SetCut(out, in bool) error {
	if h.cable == nil {
		return h.errNoCable("cutting")
	}
	return h.cable.setCut(out, in)
}

// SetCarrier plugs the cable into the host's interface, or pulls it out: the host's kernel sees it at once, and tells who
// asks (netlink).
func (h *Host) SetCarrier(up bool) error {
	if h.cable == nil {
		return h.SetUp(up) // of a pair of veths, one end sees that the other is down
	}
	var err error
	if err = errors.Join(h.cable.bay.do(func() { err = carrierTAP(h.cable.fd, up) }), err); err != nil {
		return fmt.Errorf("changing the carrier of %s: %w", h.Name, err)
	}
	return nil
}

// LinkCounts are what the two directions of the leg have done so far.
func (h *Host) LinkCounts() (out, in router.WireCounts, err error) {
	if h.cable == nil {
		return out, in, h.errNoCable("counting what passes")
	}
	err = h.cable.bay.do(func() { out, in = h.cable.station.LinkCounts() })
	return out, in, err
}
