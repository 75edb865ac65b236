package interop

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/engine/segment"
	"weft/lab/netns"
)

// A lane is a tunnel from the left to the right, on whose interfaces no kernel has an address: what is put in at one end is
// looked at where it comes out at the other.
type lane struct {
	name        string
	left, right *netns.Packets
	mends       bool // the right end does: see comparable
	zeroes      bool // the left end does
	buf         []byte
	starved     bool     // packets may be marked
	seen        [][]byte // since the last batch
}

// newLane opens a tunnel from one kind to another.
func newLane(t *testing.T, number, mtu int, left, right kind, from, to machine) *lane {
	t.Helper()
	a, b := newPair(t, number, false)
	a.Addrs, b.Addrs = nil, nil
	a.MTU, b.MTU = mtu, mtu
	a.Allowed, b.Allowed = rightPrefixes, leftPrefixes
	stranger, _ := newPair(t, number, false)
	for _, side := range []*tunnel{&a, &b} {
		side.Elsewhere, side.Stranger = elsewhere, stranger.Peer
	}
	a.Endpoint = netip.AddrPortFrom(right.addr(false), b.Port)
	b.Endpoint = netip.AddrPortFrom(left.addr(false), a.Port)
	left.open(t, a)
	right.open(t, b)
	l := &lane{name: fmt.Sprintf("%T to %T", left, right), buf: make([]byte, 1<<17)}
	_, l.mends = right.(library)
	_, l.zeroes = left.(library)
	l.left, l.right = must(from.OpenPackets(a.Name))(t), must(to.OpenPackets(b.Name))(t)
	t.Cleanup(func() { l.left.Close(); l.right.Close() })
	return l
}

// read notes what comes out until something is so, for at most so long.
func (l *lane) read(t *testing.T, limit time.Duration, so func() bool) bool {
	t.Helper()
	for deadline := time.Now().Add(limit); !so(); {
		n, err := l.right.Read(l.buf, deadline)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		if err != nil || n < segment.HeaderSize {
			t.Fatalf("%s: reading %d bytes: %v", l.name, n, err)
		}
		l.seen = append(l.seen, taken(segment.ParseHeader(l.buf), l.buf[segment.HeaderSize:n])...)
	}
	return true
}

var markFrom = netip.MustParseAddr("10.77.1.99")

// mark is a packet that says that all before it are through, once it is through itself.
func mark(number uint32) []byte {
	f := flow{proto: protoTest, src: markFrom, dst: netip.MustParseAddr("10.77.2.99"), ttl: 64, df: 0x40}
	b := newMaker(0, innerMTU).packet(f, 0, 4)
	binary.BigEndian.PutUint32(b[20:], number)
	return b
}

// passMark sends one until it is through.
func (l *lane) passMark(t *testing.T, number uint32) {
	t.Helper()
	m := mark(number)
	isMark := func(p []byte) bool { return bytes.Equal(p, m) }
	for range 20 {
		if err := l.left.Write(injected{packet: m}.bytes()); err != nil {
			t.Fatal(err)
		}
		if l.read(t, patience/20, func() bool { return slices.ContainsFunc(l.seen, isMark) }) {
			l.seen = slices.DeleteFunc(l.seen, isMark)
			return
		}
	}
	t.Fatalf("%s: nothing comes through", l.name)
}

// passes is what WireGuard does to an inner packet (section 3 of its paper, and wireguard-go's device/receive.go): the
// destination must be the peer's to leave and the source the peer's to arrive, and the IP header says how long it is, of what
// arrives with up to 15 bytes of padding.
func passes(p []byte) (out []byte, ok bool) {
	within := func(list []netip.Prefix, addr []byte) bool {
		a, _ := netip.AddrFromSlice(addr)
		return slices.ContainsFunc(list, func(l netip.Prefix) bool { return l.Contains(a) })
	}
	length, src, dst, size := 0, 0, 0, 0
	switch {
	case p[0]>>4 == 4 && len(p) >= 20:
		length, src, dst, size = int(binary.BigEndian.Uint16(p[2:])), 12, 16, 4
		if length < 20 {
			return nil, false
		}
	case p[0]>>4 == 6 && len(p) >= 40:
		length, src, dst, size = 40+int(binary.BigEndian.Uint16(p[4:])), 8, 24, 16
	default:
		return nil, false
	}
	if !within(rightPrefixes, p[dst:dst+size]) || !within(leftPrefixes, p[src:src+size]) {
		return nil, false
	}
	padded := append(slices.Clone(p), make([]byte, -len(p)&15)...)
	if length > len(padded) {
		return nil, false
	}
	return padded[:length], true
}

// comparable is a packet as text, without what may differ: the identification of an IPv4 packet that may not be a fragment
// means nothing (RFC 6864) and is made anew when a super-packet is taken apart.
//
// Wireguard-go puts together more than that, and what it put together is mended when it is taken apart: identifications of
// packets that may be fragmented, IPv4 checksums, flow labels, and the length of UDP where the checksum is right without it. And where the kernel leaves UDP's
// checksum to it and zero comes out, it writes that, which says that there is none, and not 0xffff (gsoNoneChecksum in its tun/offload_linux.go; RFC 768).
func (l *lane) comparable(p []byte) string {
	p = slices.Clone(p)
	if l.starved {
		segment.MarkCE(p)
	}
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		n := min(int(p[0]&15)*4, len(p))
		df := p[6]&0x40 != 0 && n >= 20 && ones(0, p[:n]) == 0xffff
		if df || l.mends && p[0] == 0x45 && p[6]&0x3f == 0 && p[7] == 0 {
			clear(p[4:6])
			clear(p[10:12])
		}
		if p[0] == 0x45 && p[9] == protoUDP && len(p) >= 28 {
			l.mendUDP(p, 20, flow{proto: protoUDP, src: netip.AddrFrom4([4]byte(p[12:])), dst: netip.AddrFrom4([4]byte(p[16:]))})
		}
	case len(p) >= 40 && p[0]>>4 == 6:
		if l.mends {
			p[1] &= 0xf0
			clear(p[2:4])
		}
		if p[6] == protoUDP && len(p) >= 48 {
			l.mendUDP(p, 40, flow{proto: protoUDP, src: netip.AddrFrom16([16]byte(p[8:])), dst: netip.AddrFrom16([16]byte(p[24:]))})
		}
	}
	return string(p)
}

func (l *lane) mendUDP(p []byte, at int, f flow) {
	if l.mends {
		mendLength(p, at, f)
	}
	if l.zeroes && p[at+6]|p[at+7] == 0 && ones(f.pseudo(len(p)-at), p[at:]) == 0xffff {
		p[at+6], p[at+7] = 0xff, 0xff
	}
}

// mendLength writes UDP's length, and its checksum with it, if that is right for the length of the packet.
func mendLength(p []byte, at int, f flow) {
	n := len(p) - at
	if ones(f.pseudo(n), p[at:]) != 0xffff || p[at+6]|p[at+7] == 0 {
		return
	}
	binary.BigEndian.PutUint16(p[at+4:], uint16(n))
	p[at+6], p[at+7] = 0, 0
	binary.BigEndian.PutUint16(p[at+6:], ^ones(f.pseudo(n), p[at:]))
}

// sorted are packets to be compared as a set. Their order is each flow's own business.
func (l *lane) sorted(list [][]byte) []string {
	var out []string
	for _, p := range list {
		out = append(out, l.comparable(p))
	}
	slices.Sort(out)
	return out
}

// flows are packets by addresses, protocol, ports and DSCP, in order. Packets of different DSCP may overtake each other: that is
// what it is for.
//
// Wireguard-go at the right end puts TCP in the order of its sequence numbers, and what comes behind UDP without a payload in
// front of it, where it puts packets together (handleGRO in its tun/offload_linux.go).
func (l *lane) flows(list [][]byte) map[string][]string {
	m := map[string][]string{}
	for _, p := range list {
		var key string
		switch {
		case l.mends && (p[0]>>4 == 4 && (p[9] == protoTCP || len(p) <= 28) || p[0]>>4 == 6 && (p[6] == protoTCP || len(p) <= 48)):
			continue
		case p[0] == 0x45 && p[6]&0x3f == 0 && p[7] == 0 && len(p) >= 24 && (p[9] == protoTCP || p[9] == protoUDP):
			key = string([]byte{p[9], p[1] >> 2}) + string(p[12:24])
		case p[0]>>4 == 6 && len(p) >= 44 && (p[6] == protoTCP || p[6] == protoUDP):
			key = string([]byte{p[6], p[0]<<2 | p[1]>>6}) + string(p[8:44])
		default:
			continue
		}
		m[key] = append(m[key], l.comparable(p))
	}
	return m
}

// difference shows what is in one of two sorted lists alone.
func difference(got, want []string) string {
	var b strings.Builder
	show := func(sign string, list, other []string) {
		for _, p := range list {
			if _, ok := slices.BinarySearch(other, p); !ok {
				fmt.Fprintf(&b, "%s %x\n", sign, p[:min(len(p), 100)])
			}
		}
	}
	show("missing", want, got)
	show("besides", got, want)
	return b.String()
}

// order shows in which order the packets of a flow came, by their first bytes.
func order(got, want []string) string {
	var b strings.Builder
	for i, p := range got {
		fmt.Fprintf(&b, "\n%d came as %d: %.60x", slices.Index(want, p), i, p)
	}
	return b.String()
}

// Wireguard-go adds IPv6's header to its payload length in 16 bits, and delivers the first bytes of such packets.
func TestAPayloadLengthThatOverflowsIsTooLong(t *testing.T) {
	w := newWorld(t, noImpairment)
	left, right := w.host(t, "left"), w.host(t, "right")
	l := newLane(t, 1, innerMTU, library{left}, newOurs(right), left, right)
	l.passMark(t, 0)
	f := flow{six: true, proto: protoTest, first: protoTest, src: netip.MustParseAddr("fd77:1::1"), dst: netip.MustParseAddr("fd77:2::1")}
	for _, length := range []uint16{65495, 65496, 65500, 65535} {
		p := newMaker(0, innerMTU).packet(f, 0, 100)
		binary.BigEndian.PutUint16(p[4:], length)
		if err := l.left.Write(injected{packet: p}.bytes()); err != nil {
			t.Fatal(err)
		}
	}
	l.passMark(t, 1)
	l.passMark(t, 2)
	if len(l.seen) > 0 {
		t.Errorf("out came %x", l.seen)
	}
}

func TestInnerPacketsPassOrDropAsWithWireguardGo(t *testing.T) {
	w := newWorld(t, noImpairment)
	differ(t, w.host(t, "left"), w.host(t, "right"), innerMTU, 60)
}

func TestJumboPacketsPassOrDropAsWithWireguardGo(t *testing.T) {
	w := newWorld(t, noImpairment)
	left, right := w.host(t, "left"), w.host(t, "right")
	if err := w.lab.Public().SetMTU(9000); err != nil {
		t.Fatal(err)
	}
	differ(t, left, right, jumboMTU, 20)
}

// inject puts packets in.
func (l *lane) inject(t *testing.T, list []injected) {
	t.Helper()
	for _, p := range list {
		if err := l.left.Write(p.bytes()); err != nil {
			t.Fatalf("%s: %v", p.what, err)
		}
	}
}

// compare waits for what was put in to come out, and says what is not as expected; "": all is.
func (l *lane) compare(t *testing.T, marks *uint32, expected [][]byte) (wrong string) {
	t.Helper()
	// A mark may overtake other flows. The next one cannot, for it came when their queue was empty.
	for range 2 {
		*marks++
		l.passMark(t, *marks)
	}
	l.read(t, 2*time.Second, func() bool { return len(l.seen) >= len(expected) })
	l.seen = slices.DeleteFunc(l.seen, func(p []byte) bool { return len(p) == 24 && netip.AddrFrom4([4]byte(p[12:])) == markFrom })
	defer func() {
		l.read(t, 100*time.Millisecond, func() bool { return wrong == "" }) // and nothing of it comes with the next
		l.seen = nil
	}()
	if got, want := l.sorted(l.seen), l.sorted(expected); !slices.Equal(got, want) {
		return fmt.Sprintf("%s: what came out is not what was to, %d packets and not %d:\n%s", l.name, len(got), len(want), difference(got, want))
	}
	got := l.flows(l.seen)
	for key, want := range l.flows(expected) {
		if !slices.Equal(got[key], want) {
			wrong += fmt.Sprintf("%s: a flow of %d packets came out in another order: %s\n", l.name, len(want), order(got[key], want))
		}
	}
	return wrong
}

// differ sends batches of packets from one machine to another by wireguard-go and by the engine, in all combinations, and
// compares what comes out.
func differ(t *testing.T, left, right machine, mtu, batches int) {
	t.Helper()
	lanes := []*lane{
		newLane(t, 1, mtu, library{left}, library{right}, left, right),
		newLane(t, 2, mtu, newOurs(left), library{right}, left, right),
		newLane(t, 3, mtu, library{left}, newOurs(right), left, right),
		newLane(t, 4, mtu, newOurs(left), newOurs(right), left, right),
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("WEFT_LAB_SEED"); s != "" {
		fmt.Sscan(s, &seed)
	}
	if s := os.Getenv("WEFT_INTEROP_BATCHES"); s != "" {
		fmt.Sscan(s, &batches)
	}
	t.Logf("WEFT_LAB_SEED=%d", seed)
	m, marks := newMaker(seed, mtu), uint32(0)
	for _, l := range lanes {
		l.passMark(t, marks)
	}
	injectedCount, deliveredCount := 0, 0
	for range batches {
		// No more at once than a TUN device's queue (500) and a socket's buffer hold, so that none is dropped for want of room.
		var list []injected
		for bytes := 0; len(list) < 150 && bytes < 250_000; {
			more := m.batch()
			for _, p := range more {
				bytes += len(p.packet)
			}
			list = append(list, more...)
		}
		var expected [][]byte
		list = slices.DeleteFunc(list, func(p injected) bool {
			err := lanes[0].left.Write(p.bytes())
			switch {
			case errors.Is(err, syscall.EINVAL) && p.header.Type == segment.UDP:
				return true // kernels before 6.2 know none
			case err != nil:
				t.Fatalf("%s: %v", p.what, err)
			}
			for _, whole := range taken(p.header, p.packet) {
				if out, ok := passes(whole); ok {
					expected = append(expected, out)
				}
			}
			return false
		})
		injectedCount += len(list)
		deliveredCount += len(expected)
		for i, l := range lanes {
			// An engine whose thread gets no processor for a while marks or drops packets that have waited (RFC 8289): what is wrong
			// with the packets themselves is so again.
			wrong := ""
			for try := range 4 {
				if l.starved = try > 0; i > 0 || l.starved {
					l.inject(t, list)
				}
				if wrong = l.compare(t, &marks, expected); wrong == "" {
					break
				}
				t.Logf("try %d: %s", try, wrong)
			}
			if wrong != "" {
				t.Fatal(wrong) // WEFT_LAB_SEED repeats it
			}
		}
	}
	t.Logf("%d packets went in, %d came out, each by %d ways", injectedCount, deliveredCount, len(lanes))
}
