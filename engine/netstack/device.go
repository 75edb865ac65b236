package netstack

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"weft/engine"
	"weft/engine/segment"
)

// port is the stack as the engine sees it: a device of one queue.
type port struct {
	n    *Netstack
	link *link
	ends map[tcpip.NetworkProtocolNumber]stack.NetworkEndpoint // where packets enter the stack

	out filler // the reader's
}

var (
	_ engine.Device = (*port)(nil)
	_ engine.Queue  = (*port)(nil)
)

// New makes a stack with these addresses, and the device that the engine takes. Closing the device closes the
// stack.
func New(addrs []netip.Addr, mtu int, log *slog.Logger) (engine.Device, *Netstack, error) {
	l := newLink(mtu)
	n, err := newNetstack(l, addrs, log)
	if err != nil {
		return nil, nil, err
	}
	d := &port{n: n, link: l, ends: make(map[tcpip.NetworkProtocolNumber]stack.NetworkEndpoint)}
	for _, proto := range []tcpip.NetworkProtocolNumber{header.IPv4ProtocolNumber, header.IPv6ProtocolNumber} {
		end, terr := n.stack.GetNetworkEndpoint(nic, proto)
		if terr != nil {
			n.close()
			return nil, nil, failure("finding the way into the network stack", terr)
		}
		d.ends[proto] = end
	}
	return d, n, nil
}

func (d *port) Name() string              { return "" }
func (d *port) Queues() []engine.Queue    { return []engine.Queue{d} }
func (d *port) Offloads() engine.Offloads { return engine.Offloads{TCP: true} }

// Close closes the stack and every connection in it.
func (d *port) Close() error {
	d.n.close()
	d.link.Close() // behind the stack's last words to its peers
	return nil
}

// Wake ends the wait for a packet, or else the next.
func (d *port) Wake() { d.link.interrupt() }

// Await waits for a packet that the stack sends.
func (d *port) Await(most time.Duration) error { return d.link.await(most) }

// TryRead takes one, if there is one.
func (d *port) TryRead(buf []byte) (int, error) {
	p, err := d.link.take()
	if p == nil {
		return 0, err
	}
	defer p.DecRef()
	if segment.HeaderSize+p.Size() > len(buf) {
		return 0, fmt.Errorf("a packet of %d bytes does not fit into %d: %w", p.Size(), len(buf), segment.ErrShort)
	}
	var h segment.Header
	if g := p.GSOOptions; g.Type != stack.GSONone && g.NeedsCsum {
		h.Flags, h.ChecksumStart, h.ChecksumAt = segment.NeedsChecksum, g.L3HdrLen, g.CsumOffset
		if p.Data().Size() > int(g.MSS) {
			h.Size, h.HeaderLen = g.MSS, uint16(p.HeaderSize())
			if h.Type = segment.TCPv4; g.Type == stack.GSOTCPv6 {
				h.Type = segment.TCPv6
			}
		}
	}
	h.Put(buf)
	d.out = filler{b: buf, n: segment.HeaderSize}
	d.out.Write(p.NetworkHeader().Slice())
	d.out.Write(p.TransportHeader().Slice())
	_, _ = p.Data().ReadTo(&d.out, true)
	d.out.b = nil
	return d.out.n, nil
}

// filler fills a buffer that has room for all.
type filler struct {
	b []byte
	n int
}

func (f *filler) Write(p []byte) (int, error) {
	f.n += copy(f.b[f.n:], p)
	return len(p), nil
}

// Write puts a packet into the stack, and changes it. Checksums of packets that were put together were verified before
// that, and are not there any more; those of others the stack verifies.
func (d *port) Write(packet []byte) error {
	if d.n.ctx.Err() != nil {
		return os.ErrClosed
	}
	if len(packet) <= segment.HeaderSize {
		return segment.ErrShort
	}
	h, p := segment.ParseHeader(packet), packet[segment.HeaderSize:]
	switch {
	case h.Type == segment.None:
		return d.deliver(p, h.Flags&segment.NeedsChecksum != 0)
	case h.Type != segment.UDP && d.n.own(p):
		return d.deliver(p, true)
	}
	// Datagrams are one by one for whom they are for, and so is what the stack forwards.
	var s segment.Splitter
	if err := s.Begin(h, p); err != nil {
		return err
	}
	for piece := s.Next(); piece != nil; piece = s.Next() {
		if err := d.deliver(piece, true); err != nil {
			return err
		}
	}
	return nil
}

func (d *port) deliver(b []byte, verified bool) error {
	proto := header.IPv4ProtocolNumber
	switch b[0] >> 4 {
	case 4:
	case 6:
		proto = header.IPv6ProtocolNumber
	default:
		return segment.ErrKind
	}
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
	defer p.DecRef()
	p.NetworkProtocolNumber = proto
	p.RXChecksumValidated = verified
	d.ends[proto].HandlePacket(p)
	return nil
}

// own reports whether a packet is for one of the stack's addresses.
func (n *Netstack) own(p []byte) bool {
	var to netip.Addr
	switch {
	case p[0]>>4 == 4 && len(p) >= header.IPv4MinimumSize:
		to = netip.AddrFrom4([4]byte(p[16:]))
	case p[0]>>4 == 6 && len(p) >= header.IPv6MinimumSize:
		to = netip.AddrFrom16([16]byte(p[24:]))
	}
	own := n.owned.Load()
	return own != nil && slices.Contains(*own, to)
}
