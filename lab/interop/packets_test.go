package interop

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"weft/engine/segment"
)

// The addresses of both sides, of another peer that both have, and of nobody.
var (
	leftPrefixes  = []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24"), netip.MustParsePrefix("fd77:1::/64")}
	rightPrefixes = []netip.Prefix{netip.MustParsePrefix("10.77.2.0/24"), netip.MustParsePrefix("fd77:2::/64")}
	elsewhere     = []netip.Prefix{netip.MustParsePrefix("10.78.0.0/24"), netip.MustParsePrefix("fd78::/64")}
	nowhere       = []netip.Prefix{netip.MustParsePrefix("10.79.0.0/24"), netip.MustParsePrefix("fd79::/64")}
)

// innerMTU is that of the interfaces, jumboMTU that of those over Ethernet with jumbo frames. Both are multiples of 16, as
// WireGuard's padding is.
const (
	innerMTU = 1408
	jumboMTU = 8912
)

// An injected is what a kernel gives to a TUN device, and what it is to show in a message.
type injected struct {
	header segment.Header
	packet []byte
	what   string
}

func (p injected) bytes() []byte {
	b := make([]byte, segment.HeaderSize+len(p.packet))
	p.header.Put(b)
	copy(b[segment.HeaderSize:], p.packet)
	return b
}

// A maker makes packets, right and wrong ones, from a seed.
type maker struct {
	*rand.Rand
	mtu int
	id  uint16 // of IPv4
	seq uint32
}

func newMaker(seed uint64, mtu int) *maker {
	return &maker{Rand: rand.New(rand.NewPCG(seed, 77)), mtu: mtu}
}

// number counts IPv4's identification on. The upper half is left out: where a disturbed packet says that it is IPv6, this is its
// payload length, and wireguard-go's length of such packets overflows.
func (m *maker) number(n int) { m.id = (m.id + uint16(n)) & 0x7fff }

func (m *maker) chance(percent int) bool { return m.IntN(100) < percent }

func pick[T any](m *maker, list ...T) T { return list[m.IntN(len(list))] }

// IP protocols and TCP flags.
const (
	protoHopByHop, protoTCP, protoUDP, protoFragment, protoOptions, protoTest = 0, 6, 17, 44, 60, 253

	flagFIN, flagSYN, flagRST, flagPSH, flagACK, flagURG, flagECE, flagCWR = 1, 2, 4, 8, 16, 32, 64, 128
)

// A flow is what successive packets have in common.
type flow struct {
	six      bool
	proto    byte
	src, dst netip.Addr
	ports    [4]byte
	tos, ttl byte
	df       byte
	ack      uint32
	window   uint16
	options  []byte // of TCP
	ip       []byte // options of IPv4, or extension headers
	first    byte   // the next header of IPv6
}

func (m *maker) addr(p []netip.Prefix, six bool) netip.Addr {
	i := 0
	if six {
		i = 1
	}
	b := p[i].Addr().AsSlice()
	b[len(b)-1] = byte(1 + m.IntN(4))
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (m *maker) flow() flow {
	f := flow{
		six: m.chance(50), proto: pick(m, byte(protoTCP), protoTCP, protoTCP, protoUDP, protoUDP, protoTest, 1, 58),
		tos: pick(m, byte(0), 0, 0, 1, 2, 3, 0xb8), ttl: pick(m, byte(64), 64, 1, 255), df: pick(m, byte(0x40), 0x40, 0x40, 0, 0, 0x20), // the last has more fragments behind it
		ack: m.Uint32(), window: uint16(m.Uint32()),
	}
	f.src, f.dst = m.addr(leftPrefixes, f.six), m.addr(rightPrefixes, f.six)
	binary.BigEndian.PutUint16(f.ports[:], uint16(40000+m.IntN(20)))
	binary.BigEndian.PutUint16(f.ports[2:], uint16(80+m.IntN(3)))
	switch m.IntN(4) { // TCP's: none, timestamps, SACK, or only that it has no more
	case 1:
		f.options = []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, byte(m.IntN(256))}
	case 2:
		f.options = []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 9}
	case 3:
		f.options = []byte{0, 0, 0, 0}
	}
	f.first = f.proto
	if m.chance(10) {
		m.extend(&f)
	}
	return f
}

// extend gives a flow's packets IP options or extension headers.
func (m *maker) extend(f *flow) {
	if !f.six {
		f.ip = pick(m, []byte{1, 1, 1, 0}, []byte{7, 7, 4, 0, 0, 0, 0, 0}, []byte{148, 4, 0, 0}, []byte{131, 200, 4, 0}) // the last is too long
		return
	}
	f.first = pick(m, byte(protoHopByHop), protoOptions, protoFragment)
	f.ip = []byte{f.proto, 0, 1, 4, 0, 0, 0, 0} // PadN
	if f.first == protoFragment {
		f.ip = []byte{f.proto, 0, 0, byte(m.IntN(2)), 0, 0, 0, byte(m.IntN(256))}
		if m.chance(50) {
			f.ip[2] = byte(1 + m.IntN(3)) // not the first
		}
	}
}

// base is the length of the IP header.
func (f flow) base() int {
	if f.six {
		return 40 + len(f.ip)
	}
	return 20 + len(f.ip)
}

// head is the length of all headers.
func (f flow) head() int {
	switch f.proto {
	case protoTCP:
		return f.base() + 20 + len(f.options)
	case protoUDP, 1, 58:
		return f.base() + 8
	}
	return f.base()
}

// packet makes one that is right in all.
func (m *maker) packet(f flow, flags byte, payload int) []byte {
	b := make([]byte, f.head()+payload)
	if f.six {
		b[0], b[1], b[6], b[7] = 0x60|f.tos>>4, f.tos<<4, f.first, f.ttl
		copy(b[8:], f.src.AsSlice())
		copy(b[24:], f.dst.AsSlice())
		copy(b[40:], f.ip)
	} else {
		b[0], b[1], b[6], b[8], b[9] = 0x45+byte(len(f.ip)/4), f.tos, f.df, f.ttl, f.proto
		binary.BigEndian.PutUint16(b[4:], m.id)
		m.number(1)
		copy(b[12:], f.src.AsSlice())
		copy(b[16:], f.dst.AsSlice())
		copy(b[20:], f.ip)
	}
	t := b[f.base():]
	if f.proto != protoTest {
		copy(t, f.ports[:])
	}
	for i := f.head(); i < len(b); i++ {
		b[i] = byte(m.Uint32())
	}
	if f.proto == protoTCP {
		binary.BigEndian.PutUint32(t[4:], m.seq)
		m.seq += uint32(payload)
		binary.BigEndian.PutUint32(t[8:], f.ack)
		t[12], t[13] = byte(20+len(f.options))<<2, flags
		binary.BigEndian.PutUint16(t[14:], f.window)
		copy(t[20:], f.options)
	}
	f.finish(b)
	return b
}

// finish writes lengths and checksums.
func (f flow) finish(b []byte) {
	if f.six {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	} else {
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		headerSum(b)
	}
	if f.proto == protoUDP {
		binary.BigEndian.PutUint16(b[f.base()+4:], uint16(len(b)-f.base()))
	}
	if at := f.sumAt(); at > 0 {
		b[at], b[at+1] = 0, 0
		s := ^ones(f.pseudo(len(b)-f.base()), b[f.base():])
		if s == 0 && f.proto == protoUDP {
			s = 0xffff
		}
		binary.BigEndian.PutUint16(b[at:], s)
	}
}

// sumAt is where the transport's checksum is; zero: it has none.
func (f flow) sumAt() int {
	switch f.proto {
	case protoTCP:
		return f.base() + 16
	case protoUDP:
		return f.base() + 6
	}
	return 0
}

// headerSum writes the checksum of an IPv4 header.
func headerSum(b []byte) {
	n := min(int(b[0]&15)*4, len(b))
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], ^ones(0, b[:n]))
}

// ones is the sum of RFC 1071 as it is written.
func ones(s uint32, b []byte) uint16 {
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i]) << 8
		if i+1 < len(b) {
			s += uint32(b[i+1])
		}
		s = s>>16 + s&0xffff
	}
	s = s>>16 + s&0xffff
	return uint16(s)
}

// pseudo is the sum of the pseudo-header for n bytes of transport.
func (f flow) pseudo(n int) uint32 {
	s := uint32(ones(0, f.src.AsSlice())) + uint32(ones(0, f.dst.AsSlice())) + uint32(f.proto) + uint32(n)
	return s>>16 + s&0xffff
}

// batch makes some packets: a run of one flow, of which one may be disturbed, a super-packet, or a wrong one.
func (m *maker) batch() (list []injected) {
	switch f := m.flow(); {
	case m.chance(20) && len(f.ip) == 0 && (f.proto == protoTCP || f.proto == protoUDP):
		return append(list, m.super(f))
	case m.chance(50):
		size := 1 + m.IntN(m.mtu-f.head())
		n := 1 + m.IntN(12)
		odd := m.IntN(2 * n) // often none
		for i := range n {
			flags := byte(flagACK)
			if f.proto == protoTCP && m.chance(5) {
				flags = pick(m, byte(flagSYN), flagACK|flagFIN, flagACK|flagPSH, flagRST, flagACK|flagURG, flagACK|flagECE, flagACK|flagCWR, 0, 255)
			}
			p := injected{packet: m.packet(f, flags, size), what: fmt.Sprintf("%d of a run of protocol %d", i, f.proto)}
			if i == odd {
				p.what += ", " + m.disturb(f, &p)
			}
			list = append(list, p)
		}
		if m.chance(20) { // behind a shorter one nothing can follow
			list = append(list, injected{packet: m.packet(f, flagACK, m.IntN(size)), what: "the short end of a run"})
		}
	default:
		p := injected{packet: m.packet(f, flagACK, m.IntN(m.mtu-f.head()+1)), what: fmt.Sprintf("one of protocol %d", f.proto)}
		if m.chance(70) {
			p.what += ", " + m.disturb(f, &p)
		}
		list = append(list, p)
	}
	return list
}

// disturb does one wrong or unusual thing to a packet, and says which.
func (m *maker) disturb(f flow, p *injected) string {
	b, ip := p.packet, f.base()
	length := func(delta int) {
		if f.six {
			binary.BigEndian.PutUint16(b[4:], uint16(max(0, len(b)-40+delta)))
			return
		}
		binary.BigEndian.PutUint16(b[2:], uint16(max(0, len(b)+delta)))
		headerSum(b)
	}
	for {
		switch what := pick(m, "a bit", "a checksum", "no checksum", "a length that is too long", "a length that is too short", "a tiny length",
			"cut off", "more behind it", "another version", "another header length", "another source", "another destination", "a mapped source", "a mapped destination",
			"TCP's header length", "UDP's length", "a fragment", "another order", "another ack", "another TOS", "another TTL", "urgent", "not summed"); what {
		case "a bit":
			i := m.IntN(len(b))
			b[i] ^= 1 << m.IntN(8)
			return fmt.Sprintf("%s of byte %d", what, i)
		case "a checksum":
			if at := f.sumAt(); at > 0 {
				binary.BigEndian.PutUint16(b[at:], uint16(m.Uint32()))
				return what
			}
			if !f.six {
				b[10] ^= 0x10
				return "an IPv4 checksum"
			}
		case "no checksum":
			if at := f.sumAt(); at > 0 {
				b[at], b[at+1] = 0, 0
				return what
			}
		case "a length that is too long":
			n := 1 + m.IntN(40) // padding lets the first ones pass
			length(n)
			return fmt.Sprint(what, " by ", n)
		case "a length that is too short":
			n := 1 + m.IntN(len(b))
			length(-n)
			return fmt.Sprint(what, " by ", n)
		case "a tiny length":
			if !f.six {
				binary.BigEndian.PutUint16(b[2:], uint16(m.IntN(20)))
				return what
			}
		case "cut off":
			n := 1 + m.IntN(min(len(b)-1, ip+8))
			p.packet = b[:n]
			return fmt.Sprint(what, " at ", n)
		case "more behind it":
			if len(b)+16 <= m.mtu {
				p.packet = append(b, make([]byte, 1+m.IntN(16))...)
				return what
			}
		case "another version":
			b[0] = b[0]&15 | byte(m.IntN(16))<<4
			return fmt.Sprint(what, " ", b[0]>>4)
		case "another header length":
			if !f.six {
				b[0] = 0x40 | byte(m.IntN(16))
				headerSum(b)
				return what
			}
		case "another source":
			f.src = m.addr(pick(m, elsewhere, nowhere, rightPrefixes), f.six)
			src, _, _ := f.places()
			copy(b[src:], f.src.AsSlice())
			f.finish(b)
			return what
		case "another destination":
			f.dst = m.addr(pick(m, elsewhere, nowhere, leftPrefixes), f.six)
			_, dst, _ := f.places()
			copy(b[dst:], f.dst.AsSlice())
			f.finish(b)
			return what
		case "a mapped source", "a mapped destination":
			// An IPv4 address in IPv6's clothes is none (RFC 4038, section 4.2).
			if f.six {
				src, dst, _ := f.places()
				at, prefix := src, leftPrefixes
				if what == "a mapped destination" {
					at, prefix = dst, rightPrefixes
				}
				a := m.addr(prefix, false).As16()
				copy(b[at:], a[:])
				return what
			}
		case "TCP's header length":
			if f.proto == protoTCP {
				b[ip+12] = byte(m.IntN(16)) << 4
				if m.chance(50) {
					f.finish(b)
				}
				return what
			}
		case "UDP's length":
			if f.proto == protoUDP {
				binary.BigEndian.PutUint16(b[ip+4:], uint16(m.IntN(len(b))))
				if m.chance(50) { // with a sum that is right for those who do not look at it
					b[ip+6], b[ip+7] = 0, 0
					binary.BigEndian.PutUint16(b[ip+6:], ^ones(f.pseudo(len(b)-ip), b[ip:]))
				}
				return what
			}
		case "a fragment":
			if !f.six {
				b[6], b[7] = pick(m, byte(0x20), 0, 1, 0x20|1), byte(m.IntN(256))
				headerSum(b)
				return what
			}
		case "another order":
			if f.proto == protoTCP {
				binary.BigEndian.PutUint32(b[ip+4:], m.seq+uint32(m.IntN(3000))-1500)
				f.finish(b)
				return what
			}
		case "another ack":
			if f.proto == protoTCP {
				binary.BigEndian.PutUint32(b[ip+8:], m.Uint32())
				f.finish(b)
				return what
			}
		case "another TOS":
			b[1] ^= 0x10
			f.finish(b)
			return what
		case "another TTL":
			_, _, ttl := f.places()
			b[ttl] = byte(1 + m.IntN(255))
			f.finish(b)
			return what
		case "urgent":
			if f.proto == protoTCP {
				b[ip+13] |= flagURG
				b[ip+19] = byte(m.IntN(256))
				f.finish(b)
				return what
			}
		case "not summed":
			// What a kernel leaves to the device: the pseudo-header's sum is there, the rest is to be added.
			if at := f.sumAt(); at > 0 {
				binary.BigEndian.PutUint16(b[at:], ones(f.pseudo(len(b)-ip), nil))
				p.header = segment.Header{Flags: segment.NeedsChecksum, ChecksumStart: uint16(ip), ChecksumAt: uint16(at - ip)}
				return what
			}
		}
	}
}

// places are where addresses and TTL are.
func (f flow) places() (src, dst, ttl int) {
	if f.six {
		return 8, 24, 7
	}
	return 12, 16, 8
}

// super makes a super-packet, as the kernel makes them: right in all.
func (m *maker) super(f flow) injected {
	size := 1 + m.IntN(m.mtu-f.head())
	n := 1 + m.IntN(min(44, 60000/size)*size)
	flags := pick(m, byte(flagACK), flagACK|flagPSH, flagACK|flagFIN|flagPSH, flagACK|flagECE, flagACK|flagCWR)
	f.df = 0x40
	p := injected{packet: m.packet(f, flags, n), what: fmt.Sprintf("a super-packet of protocol %d, %d bytes in pieces of %d", f.proto, n, size)}
	m.number(n / size)
	p.header = segment.Header{
		Flags: segment.NeedsChecksum, HeaderLen: uint16(f.head()), Size: uint16(size),
		ChecksumStart: uint16(f.base()), ChecksumAt: uint16(f.sumAt() - f.base()), Type: segment.UDP,
	}
	if n <= size {
		p.header.Size, p.header.Type = 0, segment.None
	} else if f.proto == protoTCP {
		if p.header.Type = segment.TCPv4; f.six {
			p.header.Type = segment.TCPv6
		}
		if flags&flagCWR != 0 {
			p.header.Type |= segment.ECN
		}
	}
	binary.BigEndian.PutUint16(p.packet[f.sumAt():], ones(f.pseudo(len(p.packet)-f.base()), nil))
	return p
}

// taken is what a packet and its header stand for: whole packets with their checksums. It is what a kernel does with one
// where the device cannot, in the plain way, for packets without IP options.
func taken(h segment.Header, b []byte) (list [][]byte) {
	b = slices.Clone(b)
	start, at := int(h.ChecksumStart), int(h.ChecksumStart)+int(h.ChecksumAt)
	if h.Type == segment.None {
		if h.Flags&segment.NeedsChecksum != 0 {
			s := ^ones(0, b[start:]) // with the pseudo-header's sum in the field
			if s == 0 && h.ChecksumAt == 6 {
				s = 0xffff
			}
			binary.BigEndian.PutUint16(b[at:], s)
		}
		return append(list, b)
	}
	f := flow{six: b[0]>>4 == 6, proto: protoUDP}
	head := start + 8
	if h.Type != segment.UDP {
		f.proto, head = protoTCP, start+int(b[start+12]>>4)*4
	}
	if f.six {
		f.src, f.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	} else {
		f.src, f.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	}
	payload := b[head:]
	for from := 0; from < len(payload); from += int(h.Size) {
		piece := payload[from:min(from+int(h.Size), len(payload))]
		p := append(slices.Clone(b[:head]), piece...)
		if !f.six {
			binary.BigEndian.PutUint16(p[4:], binary.BigEndian.Uint16(b[4:])+uint16(len(list)))
		}
		if t := p[start:]; f.proto == protoTCP {
			binary.BigEndian.PutUint32(t[4:], binary.BigEndian.Uint32(t[4:])+uint32(from))
			if from > 0 {
				t[13] &^= flagCWR
			}
			if from+len(piece) < len(payload) {
				t[13] &^= flagFIN | flagPSH
			}
		}
		f.finish(p)
		list = append(list, p)
	}
	return list
}
