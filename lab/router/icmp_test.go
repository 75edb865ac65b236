package router

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"weft"
	"weft/lab/vnet"
)

// icmpError is an error about a packet as whoever got it saw it.
func icmpError(from netip.Addr, about packet, kind, code byte) []byte {
	quoted := about.ip[:min(len(about.ip), 48)]
	b := make([]byte, ipv4Len+8+len(quoted))
	m := header4(b, 8+len(quoted), protoICMP, from, about.src.Addr())
	m[0], m[1] = kind, code
	copy(m[8:], quoted)
	binary.BigEndian.PutUint16(m[2:], checksum(0, m))
	return b
}

func TestWhatAnErrorQuotesIsTranslatedToo(t *testing.T) {
	b := newBench(t, Config{NAT: vnet.NATConfig{Mapping: weft.AddressAndPortDependentMapping,
		Filtering: weft.AddressAndPortDependentFiltering, Public: []netip.Addr{public}}})
	for _, proto := range []uint8{protoUDP, protoTCP, protoICMP} {
		b.send(Inside, datagram(proto, at(host, 5000), at(faraway, 7000), 64, []byte("hello")))
		out := b.take(Outside)
		// From a router on the way, which is not where the packet was sent.
		b.send(Outside, icmpError(server, out, icmpTimeExceeded, 0))
		in := b.take(Inside)
		quoted := parse(in.l4[8:], false, true)
		if in.src.Addr() != server || in.dst.Addr() != host || quoted.src != at(host, 5000) || quoted.dst.Addr() != faraway {
			t.Errorf("protocol %d: an error from %v to %v quotes %v to %v", proto, in.src, in.dst, quoted.src, quoted.dst)
		}
		if checksum(0, quoted.ip[:ipv4Len]) != 0 {
			t.Errorf("protocol %d: the quoted header's sum is wrong", proto)
		}
		broken := icmpError(server, out, icmpTimeExceeded, 0)
		broken[len(broken)-1] ^= 1
		b.send(Outside, broken)
		b.silent()
	}
	// The other way round: the host has closed the port to which an answer comes.
	b.send(Inside, datagram(protoUDP, at(host, 5001), at(server, 7000), 64, nil))
	out := b.take(Outside)
	b.send(Outside, datagram(protoUDP, at(server, 7000), out.src, 64, []byte("answer")))
	in := b.take(Inside)
	b.send(Inside, icmpError(host, in, icmpUnreachable, 3))
	told := b.take(Outside)
	quoted := parse(told.l4[8:], false, true)
	if told.src.Addr() != public || told.dst.Addr() != server || quoted.dst != out.src || quoted.src != at(server, 7000) {
		t.Errorf("the server is told by %v of a packet from %v to %v, which it never sent", told.src, quoted.src, quoted.dst)
	}
	b.send(Outside, icmpError(server, parse(datagram(protoUDP, at(public, 9), at(server, 9), 64, nil), false, true), icmpUnreachable, 3))
	b.silent() // about nothing that passed
	if b.Counts()[strayVerdict] == 0 {
		t.Errorf("the counts are %v", b.Counts())
	}
}

func TestErrorsAboutHairpinnedPacketsComeBackByTheSameHairpin(t *testing.T) {
	c := cone
	c.Hairpin, c.Filtering = true, weft.EndpointIndependentFiltering
	b := newBench(t, Config{NAT: c})
	other := netip.MustParseAddr("192.168.1.3")
	b.learn(start, Inside, other, macOf(other))
	b.send(Inside, datagram(protoUDP, at(other, 6000), at(server, 7000), 64, nil))
	target := b.take(Outside).src
	b.send(Inside, datagram(protoUDP, at(host, 5000), target, 64, []byte("hi")))
	turned := b.take(Inside)
	if turned.src != at(public, 5000) || turned.dst != at(other, 6000) {
		t.Fatalf("a hairpinned packet goes from %v to %v", turned.src, turned.dst)
	}
	b.send(Inside, icmpError(other, turned, icmpUnreachable, 3))
	told := b.take(Inside)
	quoted := parse(told.l4[8:], false, true)
	if told.dst.Addr() != host || told.src.Addr() != public || quoted.src != at(host, 5000) || quoted.dst != target {
		t.Errorf("the sender is told by %v of a packet from %v to %v", told.src, quoted.src, quoted.dst)
	}
}

func TestAPacketWhoseTimeIsOverIsAnsweredAndOpensNothing(t *testing.T) {
	b := newBench(t, Config{})
	b.send(Inside, datagram(protoUDP, at(host, 5000), at(server, 7000), 1, []byte("opener")))
	p := b.take(Inside)
	quoted := parse(p.l4[8:], false, true)
	if p.icmp != icmpTimeExceeded || p.src.Addr() != home.Addr() || p.dst.Addr() != host || quoted.src != at(host, 5000) {
		t.Errorf("the host was told type %d by %v about %v", p.icmp, p.src, quoted.src)
	}
	b.send(Outside, datagram(protoUDP, at(server, 7000), at(public, 5000), 64, nil))
	b.silent()
	if b.Counts()[vnet.DropNoMapping.String()] != 1 || b.Counts()[vnet.DropTTL.String()] != 1 {
		t.Errorf("the counts are %v", b.Counts())
	}
	// From outside, the sender is told; what it gets to read is what it sent.
	b.send(Inside, datagram(protoUDP, at(host, 5000), at(server, 7000), 64, nil))
	b.take(Outside)
	b.send(Outside, datagram(protoUDP, at(server, 7000), at(public, 5000), 1, nil))
	p = b.take(Outside)
	if quoted := parse(p.l4[8:], false, true); p.src.Addr() != public || quoted.dst != at(public, 5000) {
		t.Errorf("the server was told by %v about a packet to %v", p.src, quoted.dst)
	}
	// IPv6 likewise.
	b.send(Inside, datagram(protoUDP, at(host6, 5000), at(server6, 7000), 1, []byte("opener")))
	if p := b.take(Inside); p.icmp != icmp6TimeExceeded || p.src.Addr() != home6.Addr() {
		t.Errorf("the host was told type %d by %v", p.icmp, p.src)
	}
	for range 200 {
		b.send(Inside, datagram(protoUDP, at(host, 5000), at(server, 7000), 1, nil))
	}
	if n := len(b.sent[Inside]); n > errorBurst {
		t.Errorf("%d errors were sent at once, want %d at most", n, errorBurst)
	}
}
