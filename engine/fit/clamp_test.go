package fit

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"pgregory.net/rapid"
)

// A syn is a TCP segment to be, SYN or not.
type syn struct {
	six     bool
	flags   header.TCPFlags
	options []byte // of TCP, in whole words
	ip      []byte // IPv4 options, or IPv6 extension headers of which the first is next
	next    byte
	payload []byte
}

var (
	from4, to4 = tcpip.AddrFrom4([4]byte{100, 64, 0, 1}), tcpip.AddrFrom4([4]byte{100, 64, 0, 2})
	from6, to6 = tcpip.AddrFrom16([16]byte{0xfd, 15: 1}), tcpip.AddrFrom16([16]byte{0xfd, 15: 2})
)

// packet makes it, with another stack's means.
func (s syn) packet() []byte {
	segment := make([]byte, header.TCPMinimumSize+len(s.options)+len(s.payload))
	copy(segment[header.TCPMinimumSize:], s.options)
	copy(segment[header.TCPMinimumSize+len(s.options):], s.payload)
	header.TCP(segment).Encode(&header.TCPFields{
		SrcPort: 4242, DstPort: 80, SeqNum: 0xfeedbeef, DataOffset: uint8(header.TCPMinimumSize + len(s.options)),
		Flags: s.flags, WindowSize: 64240,
	})
	src, dst := from4, to4
	if s.six {
		src, dst = from6, to6
	}
	pseudo := header.PseudoHeaderChecksum(header.TCPProtocolNumber, src, dst, uint16(len(segment)))
	header.TCP(segment).SetChecksum(^checksum.Checksum(segment, pseudo))

	var p []byte
	if s.six {
		p = make([]byte, header.IPv6MinimumSize, 256)
		header.IPv6(p).Encode(&header.IPv6Fields{
			PayloadLength: uint16(len(s.ip) + len(segment)), TransportProtocol: header.TCPProtocolNumber, HopLimit: 64,
			SrcAddr: src, DstAddr: dst,
		})
		if len(s.ip) > 0 {
			p[6] = s.next
		}
		p = append(p, s.ip...)
	} else {
		p = make([]byte, header.IPv4MinimumSize+len(s.ip), 256)
		copy(p[header.IPv4MinimumSize:], s.ip)
		ip := header.IPv4(p)
		ip.Encode(&header.IPv4Fields{
			TotalLength: uint16(len(p) + len(segment)), TTL: 64, Protocol: 6, Flags: header.IPv4FlagDontFragment,
			SrcAddr: src, DstAddr: dst,
		})
		p[0] = 0x40 | byte(len(p)/4)
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
	}
	return append(p, segment...)
}

// segment is the TCP part of what packet made.
func (s syn) segment(p []byte) header.TCP {
	if s.six {
		return header.TCP(p[header.IPv6MinimumSize+len(s.ip):])
	}
	return header.TCP(p[header.IPv4MinimumSize+len(s.ip):])
}

func (s syn) valid(p []byte) bool {
	t := s.segment(p)
	if s.six {
		return t.IsChecksumValid(from6, to6, checksum.Checksum(t.Payload(), 0), uint16(len(t.Payload())))
	}
	return t.IsChecksumValid(from4, to4, checksum.Checksum(t.Payload(), 0), uint16(len(t.Payload())))
}

func mss(n int) []byte { return []byte{2, 4, byte(n >> 8), byte(n)} }

const (
	isSYN = header.TCPFlagSyn
	isACK = header.TCPFlagAck
)

func TestASYNAsksForSegmentsThatFit(t *testing.T) {
	linux := slices.Concat(mss(8860), []byte{4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7})
	odd := slices.Concat([]byte{1}, mss(8860), []byte{3, 3, 7})
	for name, c := range map[string]struct {
		syn  syn
		mtu  int
		want uint16 // 0: nothing changes
	}{
		"IPv4":                             {syn{flags: isSYN, options: linux}, 1300, 1260},
		"IPv6":                             {syn{six: true, flags: isSYN, options: linux}, 1300, 1240},
		"an answer":                        {syn{flags: isSYN | isACK, options: linux}, 1300, 1260},
		"an answer with ECN":               {syn{six: true, flags: isSYN | isACK | header.TCPFlagEce, options: linux}, 1300, 1240},
		"an option at an odd place":        {syn{flags: isSYN, options: odd}, 1300, 1260},
		"the same in IPv6":                 {syn{six: true, flags: isSYN, options: odd}, 1300, 1240},
		"after an option nobody knows":     {syn{flags: isSYN, options: slices.Concat([]byte{253, 4, 1, 2}, mss(1460))}, 1400, 1360},
		"with data (RFC 7413)":             {syn{flags: isSYN, options: linux, payload: []byte("GET /")}, 1300, 1260},
		"IPv4 options":                     {syn{flags: isSYN, options: linux, ip: []byte{0x94, 4, 0, 0}}, 1300, 1260},
		"IPv6 hop-by-hop options":          {syn{six: true, flags: isSYN, options: linux, next: 0, ip: []byte{6, 0, 5, 2, 0, 0, 1, 0}}, 1300, 1240},
		"IPv6 destination, then a segment": {syn{six: true, flags: isSYN, options: linux, next: 60, ip: []byte{44, 0, 1, 4, 0, 0, 0, 0, 6, 0, 0, 1, 0, 0, 0, 9}}, 1300, 1240},
		"IPv6 by less than its least MTU":  {syn{six: true, flags: isSYN, options: linux}, 1200, 1140},
		"never below what all take":        {syn{flags: isSYN, options: linux}, 500, 536},
		"nor in IPv6":                      {syn{six: true, flags: isSYN, options: linux}, -1, 536},
		"it fits to the byte":              {syn{flags: isSYN, options: mss(1260)}, 1300, 0},
		"it asks for less":                 {syn{flags: isSYN, options: mss(536)}, 1300, 0},
		"no SYN":                           {syn{flags: isACK, options: linux}, 1300, 0},
		"no MSS":                           {syn{flags: isSYN, options: []byte{1, 3, 3, 7}}, 1300, 0},
		"no options":                       {syn{flags: isSYN}, 1300, 0},
		"behind the end of the options":    {syn{flags: isSYN, options: slices.Concat([]byte{1, 1, 1, 0}, mss(1460))}, 1300, 0},
		"behind an option without length":  {syn{flags: isSYN, options: slices.Concat([]byte{253, 0, 1, 1}, mss(1460))}, 1300, 0},
		"an option longer than the header": {syn{flags: isSYN, options: []byte{1, 1, 2, 4}}, 1300, 0},
		"an MSS of the wrong length":       {syn{flags: isSYN, options: []byte{2, 3, 255, 1}}, 1300, 0},
		"a later fragment, which looks so": {syn{six: true, flags: isSYN, options: linux, next: 44, ip: []byte{6, 0, 0, 9, 0, 0, 0, 9}}, 1300, 0},
		"behind an authentication header":  {syn{six: true, flags: isSYN, options: linux, next: 51, ip: []byte{6, 4, 0, 0, 0, 0, 0, 1}}, 1300, 0},
		"another protocol behind a header": {syn{six: true, flags: isSYN, options: linux, next: 60, ip: []byte{17, 0, 1, 4, 0, 0, 0, 0}}, 1300, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.syn.packet()
			before := slices.Clone(p)
			if got := Clamp(p, c.mtu); got != (c.want != 0) {
				t.Fatalf("Clamp says %v", got)
			}
			if c.want == 0 {
				if !bytes.Equal(before, p) {
					t.Fatal("it changed all the same")
				}
				return
			}
			if got := header.ParseSynOptions(c.syn.segment(p).Options(), false).MSS; got != c.want {
				t.Errorf("the MSS is %d, want %d", got, c.want)
			}
			if !c.syn.valid(p) {
				t.Error("its checksum is wrong")
			}
			if Clamp(p, c.mtu) {
				t.Error("it is lowered again")
			}
		})
	}
}

func TestIPv4FragmentsAreTakenForWhatTheyAre(t *testing.T) {
	s := syn{flags: isSYN, options: mss(1460)}
	for _, c := range []struct {
		word uint16
		want bool
	}{{0x2000, true}, {0x2001, false}, {0x0001, false}, {0x1fff, false}} {
		p := s.packet()
		binary.BigEndian.PutUint16(p[6:], c.word)
		if got := Clamp(p, 1300); got != c.want {
			t.Errorf("fragment field %04x: Clamp says %v", c.word, got)
		}
	}
}

func drawSYN(t *rapid.T) syn {
	s := syn{six: rapid.Bool().Draw(t, "IPv6"), flags: isSYN, payload: rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "payload")}
	if rapid.Bool().Draw(t, "ACK") {
		s.flags |= isACK
	}
	asked := rapid.IntRange(0, 65535).Draw(t, "MSS")
	for _, o := range rapid.Permutation([][]byte{mss(asked), {4, 2}, {3, 3, 7}, {1}, {1}, {8, 10, 1, 2, 3, 4, 0, 0, 0, 0}}).Draw(t, "options") {
		s.options = append(s.options, o...)
	}
	for len(s.options)%4 != 0 {
		s.options = append(s.options, 0)
	}
	return s
}

func TestClampingChangesTheMSSAndItsChecksumAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, mtu := drawSYN(t), rapid.IntRange(-10, 70000).Draw(t, "MTU")
		p := s.packet()
		segment := s.segment(p)
		wrong := rapid.Uint16Range(0, 0xfffe).Draw(t, "error") // 0xffff would be no error
		sum := uint32(segment.Checksum()) + uint32(wrong)
		segment.SetChecksum(uint16(sum>>16 + sum&0xffff))
		right := s.valid(p)
		if right != (wrong == 0) {
			t.Fatalf("with an error of %04x, the checksum is right: %v", wrong, right)
		}
		at := findMSS(segment)
		asked := int(binary.BigEndian.Uint16(segment[at:]))
		before := slices.Clone(p)
		changed := Clamp(p, mtu)
		got := int(binary.BigEndian.Uint16(segment[at:]))
		most := mtu - 40
		if s.six {
			most = mtu - 60
		}
		if want := min(asked, max(most, 536)); got != want || changed != (asked != want) {
			t.Fatalf("asked for %d by an MTU of %d, got %d, want %d; changed: %v", asked, mtu, got, want, changed)
		}
		if s.valid(p) != right {
			t.Fatalf("the checksum was right: %v, and is: %v", right, s.valid(p))
		}
		front := len(p) - len(segment)
		for i := range p {
			sumField, mssField := i == front+16 || i == front+17, i == front+at || i == front+at+1
			if p[i] != before[i] && !sumField && !mssField {
				t.Fatalf("byte %d changed as well", i)
			}
		}
	})
}

// findMSS is where the MSS stands in a segment that drawSYN drew.
func findMSS(segment []byte) int {
	for at := 20; ; {
		switch segment[at] {
		case 1:
			at++
		case 2:
			return at + 2
		default:
			at += int(segment[at+1])
		}
	}
}

func TestNothingIsAllocatedToClampOrToAnswer(t *testing.T) {
	p, big, dst := syn{flags: isSYN, options: mss(1460)}.packet(), udp4(1400), make([]byte, 0, 2000)
	big6 := udp6(1400)
	n := testing.AllocsPerRun(100, func() {
		copy(p[42:], mss(1460)[2:])
		Clamp(p, 1300)
		TooBig(dst, big, 1300)
		TooBig(dst, big6, 1300)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzClamp(f *testing.F) {
	for _, s := range []syn{
		{flags: isSYN, options: mss(1460)},
		{six: true, flags: isSYN, options: slices.Concat([]byte{1}, mss(1460), []byte{1, 1, 1})},
		{six: true, flags: isSYN, options: mss(1460), next: 0, ip: []byte{6, 0, 5, 2, 0, 0, 1, 0}},
		{flags: isSYN, options: mss(1460), ip: []byte{0x94, 4, 0, 0}},
	} {
		f.Add(s.packet(), 1300)
	}
	f.Fuzz(func(t *testing.T, b []byte, mtu int) {
		before := slices.Clone(b)
		if !Clamp(b, mtu) {
			if diff := cmp.Diff(before, b); diff != "" {
				t.Fatalf("it says that nothing changed:\n%s", diff)
			}
			return
		}
		differ := 0
		for i := range b {
			if b[i] != before[i] {
				differ++
			}
		}
		// A hostile header may have several options.
		if most := 2 + 2*10; differ > most {
			t.Fatalf("%d bytes changed", differ)
		}
		if Clamp(b, mtu) {
			t.Fatal("it is lowered again")
		}
	})
}
