package fit

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"pgregory.net/rapid"
)

// udp4 is a datagram that must not be fragmented, n bytes long with its headers.
func udp4(n int) []byte {
	p := make([]byte, n)
	ip := header.IPv4(p)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(n), TTL: 64, Protocol: 17, Flags: header.IPv4FlagDontFragment, SrcAddr: from4, DstAddr: to4,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	for i := header.IPv4MinimumSize; i < n; i++ {
		p[i] = byte(i)
	}
	return p
}

func udp6(n int) []byte {
	p := make([]byte, n)
	header.IPv6(p).Encode(&header.IPv6Fields{
		PayloadLength: uint16(n - header.IPv6MinimumSize), TransportProtocol: header.UDPProtocolNumber, HopLimit: 64,
		SrcAddr: from6, DstAddr: to6,
	})
	for i := header.IPv6MinimumSize; i < n; i++ {
		p[i] = byte(i)
	}
	return p
}

func TestWhoSendsTooMuchIsToldAsByARouter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(48, 65535).Draw(t, "length")
		mtu := rapid.IntRange(1, 66000).Draw(t, "MTU")
		six := rapid.Bool().Draw(t, "IPv6")
		p, least, longest := udp4(n), 68, 576
		if six {
			p, least, longest = udp6(n), 1280, 1280
		}
		tail := rapid.IntRange(0, 3).Draw(t, "bytes behind the packet")
		before := slices.Clone(p)
		got := TooBig([]byte("front"), append(slices.Clone(p), make([]byte, tail)...), mtu)
		want := max(mtu, least)
		if n <= want {
			if got != nil {
				t.Fatalf("%d bytes by an MTU of %d are answered", n, mtu)
			}
			return
		}
		if !bytes.HasPrefix(got, []byte("front")) {
			t.Fatalf("%d bytes by an MTU of %d: %x", n, mtu, got)
		}
		got = got[5:]
		if len(got) > longest || len(got) < min(longest, n+28) {
			t.Fatalf("the message is %d bytes long", len(got))
		}
		var quoted []byte
		if six {
			ip := header.IPv6(got)
			icmp := header.ICMPv6(ip.Payload())
			if !ip.IsValid(len(got)) || ip.SourceAddress() != to6 || ip.DestinationAddress() != from6 || ip.NextHeader() != 58 {
				t.Fatalf("IPv6 header %x", got[:40])
			}
			if icmp.Type() != header.ICMPv6PacketTooBig || icmp.Code() != 0 || icmp.MTU() != uint32(want) {
				t.Fatalf("type %d, code %d, MTU %d, want %d", icmp.Type(), icmp.Code(), icmp.MTU(), want)
			}
			if sum := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: to6, Dst: from6}); sum != icmp.Checksum() {
				t.Fatalf("checksum %04x, want %04x", icmp.Checksum(), sum)
			}
			quoted = icmp[8:]
		} else {
			ip := header.IPv4(got)
			icmp := header.ICMPv4(ip.Payload())
			if !ip.IsValid(len(got)) || !ip.IsChecksumValid() || ip.SourceAddress() != to4 || ip.DestinationAddress() != from4 || ip.Protocol() != 1 {
				t.Fatalf("IPv4 header %x", got[:20])
			}
			if icmp.Type() != header.ICMPv4DstUnreachable || icmp.Code() != header.ICMPv4FragmentationNeeded || icmp.MTU() != uint16(want) {
				t.Fatalf("type %d, code %d, MTU %d, want %d", icmp.Type(), icmp.Code(), icmp.MTU(), want)
			}
			if checksum.Checksum(icmp, 0) != 0xffff {
				t.Fatal("the checksum is wrong")
			}
			quoted = icmp[8:]
		}
		if !bytes.Equal(quoted, before[:len(quoted)]) {
			t.Fatal("it quotes another packet")
		}
	})
}

func TestNobodyIsToldWhoMustNotBe(t *testing.T) {
	v4 := func(change func(p []byte)) []byte {
		p := udp4(1400)
		change(p)
		return p
	}
	v6 := func(change func(p []byte)) []byte {
		p := udp6(1400)
		change(p)
		return p
	}
	put := func(at int, b ...byte) func([]byte) { return func(p []byte) { copy(p[at:], b) } }
	icmp := func(kind byte) func([]byte) { return func(p []byte) { p[9], p[20] = 1, kind } }
	icmpSix := func(kind byte) func([]byte) { return func(p []byte) { p[6], p[40] = 58, kind } }
	for name, c := range map[string]struct {
		packet []byte
		told   bool
	}{
		"an ordinary packet":              {v4(func([]byte) {}), true},
		"of IPv6":                         {v6(func([]byte) {}), true},
		"which may be fragmented":         {v4(put(6, 0, 0)), false},
		"a later fragment":                {v4(put(6, 0x40, 1)), false},
		"to a group":                      {v4(put(16, 224, 0, 0, 251)), false},
		"to everybody":                    {v4(put(16, 255, 255, 255, 255)), false},
		"from nobody":                     {v4(put(12, 0, 0, 0, 0)), false},
		"from itself":                     {v4(put(12, 127, 0, 0, 1)), false},
		"from a group":                    {v4(put(12, 239, 1, 1, 1)), false},
		"an echo request":                 {v4(icmp(8)), true},
		"an echo reply":                   {v4(icmp(0)), true},
		"unreachable":                     {v4(icmp(3)), false},
		"time exceeded":                   {v4(icmp(11)), false},
		"a redirect":                      {v4(icmp(5)), false},
		"ICMP that nobody knows":          {v4(icmp(99)), false},
		"IPv6 to a group":                 {v6(put(24, 0xff, 2)), false},
		"IPv6 from nobody":                {v6(put(8, make([]byte, 16)...)), false},
		"IPv6 from a group":               {v6(put(8, 0xff, 5)), false},
		"an ICMPv6 echo":                  {v6(icmpSix(128)), true},
		"an ICMPv6 error":                 {v6(icmpSix(2)), false},
		"an ICMPv6 error nobody knows":    {v6(icmpSix(100)), false},
		"an ICMPv6 redirect":              {v6(icmpSix(137)), false},
		"an error behind a header":        {v6(func(p []byte) { p[6] = 60; copy(p[40:], []byte{58, 0, 1, 4, 0, 0, 0, 0, 3}) }), false},
		"a packet longer than it is":      {v4(put(2, 0xff, 0xff)), false},
		"a header longer than the packet": {v4(put(2, 0, 19)), false},
		"an IP version nobody knows":      {v4(put(0, 0x55)), false},
		"nothing":                         {nil, false},
	} {
		if got := TooBig(nil, c.packet, 1300); (got != nil) != c.told {
			t.Errorf("%s: told %v, want %v", name, got != nil, c.told)
		}
	}
}

// The message must make the sender send what fits, whatever else it makes of it: no answer to an answer.
func TestAnAnswerIsNeverAnswered(t *testing.T) {
	for _, p := range [][]byte{udp4(1400), udp6(1400)} {
		answer := TooBig(nil, p, 1300)
		if again := TooBig(nil, answer, 68); again != nil {
			t.Errorf("%x is answered by %x", answer, again)
		}
	}
}

func FuzzTooBig(f *testing.F) {
	f.Add(udp4(200), 100)
	f.Add(udp6(1400), 1300)
	f.Add(TooBig(nil, udp4(200), 100), 70)
	f.Fuzz(func(t *testing.T, b []byte, mtu int) {
		before := slices.Clone(b)
		got := TooBig(nil, b, mtu)
		if !bytes.Equal(before, b) {
			t.Fatal("the packet was changed")
		}
		if got == nil {
			return
		}
		p, ok := parse(got)
		if !ok || p.end != len(got) || len(got) > longest6 {
			t.Fatalf("the answer is no packet: %x", got)
		}
		if !p.six {
			if told := int(binary.BigEndian.Uint16(got[26:])); told < least4 || told >= len(b) {
				t.Fatalf("told %d of a packet of %d", told, len(b))
			}
		}
		if !p.isError(got) {
			t.Fatal("the answer is no error")
		}
	})
}
