package router

import (
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
	"weft/lab/vnet"
)

var (
	start    = time.Unix(1_700_000_000, 0)
	home     = netip.MustParsePrefix("192.168.1.1/24")
	internet = netip.MustParsePrefix("203.0.113.3/24")
	home6    = netip.MustParsePrefix("2001:db8:0:1::1/64")
	net6     = netip.MustParsePrefix("2001:db8::3/64")
	host     = netip.MustParseAddr("192.168.1.2")
	host6    = netip.MustParseAddr("2001:db8:0:1::2")
	server   = netip.MustParseAddr("203.0.113.2")
	server6  = netip.MustParseAddr("2001:db8::2")
	faraway  = netip.MustParseAddr("198.51.100.7")
	gateway  = netip.MustParseAddr("203.0.113.1")
	public   = internet.Addr()
)

var cone = vnet.NATConfig{Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressAndPortDependentFiltering,
	Allocation: weft.PreservingAllocation, Public: []netip.Addr{public}}

// A bench is a router in virtual time and what it has sent.
type bench struct {
	*Router
	t    testing.TB
	now  time.Time
	sent [2][][]byte
	told []Event
}

// macOf is the address of a test's machine.
func macOf(a netip.Addr) MAC {
	b := a.As16()
	return MAC{2, 0, b[12], b[13], b[14], b[15]}
}

func newBench(t testing.TB, c Config) *bench {
	t.Helper()
	b := &bench{t: t, now: start}
	c.Inside, c.Outside = Interface{MAC{2, 1}, home, home6}, Interface{MAC{2, 2}, internet, net6}
	c.Gateway4, c.Gateway6 = gateway, netip.MustParseAddr("2001:db8::1")
	if c.NAT.Mapping == 0 {
		c.NAT = cone
	}
	c.Trace = func(e Event) { b.told = append(b.told, e) }
	var err error
	b.Router, err = New(c, func(l Leg, f []byte) { b.sent[l] = append(b.sent[l], slices.Clone(f)) })
	if err != nil {
		t.Fatal(err)
	}
	for leg, list := range [][]netip.Addr{{host, host6}, {server, gateway, server6}} {
		for _, a := range list {
			b.learn(start, Leg(leg), a, macOf(a))
		}
	}
	return b
}

// take returns the only packet that was sent on a leg, which must be whole.
func (b *bench) take(l Leg) packet {
	b.t.Helper()
	if len(b.sent[l]) != 1 || len(b.sent[1-l]) != 0 {
		b.t.Fatalf("sent %d inside and %d outside, want one %v; told %+v", len(b.sent[Inside]), len(b.sent[Outside]), l, b.told)
	}
	f := b.sent[l][0]
	b.sent[l] = nil
	p := parse(f[etherLen:], binary.BigEndian.Uint16(f[12:]) == typeIPv6, false)
	if p.shape == malformed || !whole(p) {
		b.t.Fatalf("a packet left with wrong sums: %x", f)
	}
	return p
}

func (b *bench) silent() {
	b.t.Helper()
	if n := len(b.sent[0]) + len(b.sent[1]); n != 0 {
		b.t.Fatalf("%d frames were sent, want none", n)
	}
}

// send puts a packet on a leg as a frame for the router.
func (b *bench) send(l Leg, ip []byte) {
	f := make([]byte, etherLen, etherLen+len(ip))
	copy(f, b.legs[l].MAC[:])
	kind := uint16(typeIPv4)
	if ip[0]>>4 == 6 {
		kind = typeIPv6
	}
	binary.BigEndian.PutUint16(f[12:], kind)
	b.Handle(b.now, l, append(f, ip...))
}

// whole reports whether the transport checksum is right, computed from nothing.
func whole(p packet) bool {
	if p.proto == protoUDP && !p.v6 && binary.BigEndian.Uint16(p.l4[6:]) == 0 {
		return true
	}
	return transportSum(p) == 0
}

func transportSum(p packet) uint16 {
	var sum uint32
	switch {
	case p.v6:
		sum = pseudo6(p.ip, len(p.l4), p.proto)
	case p.proto != protoICMP:
		for i := 12; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(p.ip[i:]))
		}
		sum += uint32(p.proto) + uint32(len(p.l4))
	}
	return checksum(sum, p.l4)
}

// make writes a packet with right sums. ttl 0 is 64.
func datagram(proto uint8, src, dst netip.AddrPort, ttl uint8, payload []byte) []byte {
	if ttl == 0 {
		ttl = 64
	}
	var l4 []byte
	at := 6
	switch proto {
	case protoUDP:
		l4 = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src.Port()), dst.Port())
		l4 = append(binary.BigEndian.AppendUint16(l4, uint16(8+len(payload))), 0, 0)
	case protoTCP:
		l4 = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src.Port()), dst.Port())
		l4 = append(l4, 1, 2, 3, 4, 5, 6, 7, 8, 5<<4, 2, 255, 255, 0, 0, 0, 0)
		at = 16
	case protoICMP:
		l4 = append([]byte{icmpEcho, 0, 0, 0}, byte(src.Port()>>8), byte(src.Port()), 0, 1)
		at = 2
	case protoICM6:
		l4 = append([]byte{icmp6Echo, 0, 0, 0}, byte(src.Port()>>8), byte(src.Port()), 0, 1)
		at = 2
	}
	l4 = append(l4, payload...)
	b := make([]byte, ipv6Len+len(l4))
	if src.Addr().Is6() {
		copy(header6(b, len(l4), proto, ttl, src.Addr(), dst.Addr()), l4)
	} else {
		b = b[:ipv4Len+len(l4)]
		copy(header4(b, len(l4), proto, src.Addr(), dst.Addr()), l4)
		b[8] = ttl
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], checksum(0, b[:ipv4Len]))
	}
	p := parse(b, src.Addr().Is6(), true)
	sum := transportSum(p)
	if sum == 0 && proto == protoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(p.l4[at:], sum)
	return b
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func TestEveryProtocolIsTranslatedThereAndBackWithRightSums(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t, Config{NAT: vnet.NATConfig{Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.AddressDependentFiltering,
			Public: []netip.Addr{public}, Seed: rapid.Uint64().Draw(rt, "seed")}})
		proto := rapid.SampledFrom([]uint8{protoUDP, protoTCP, protoICMP}).Draw(rt, "proto")
		payload := rapid.SliceOfN(rapid.Byte(), 0, 1200).Draw(rt, "payload")
		remote := rapid.SampledFrom([]netip.Addr{server, faraway}).Draw(rt, "remote")
		src, dst := at(host, rapid.Uint16Range(1, 65535).Draw(rt, "sport")), at(remote, rapid.Uint16Range(1, 65535).Draw(rt, "dport"))
		ttl := rapid.Uint8Range(2, 255).Draw(rt, "ttl")
		ip := datagram(proto, src, dst, ttl, payload)
		if proto == protoUDP && rapid.Bool().Draw(rt, "without sum") {
			ip[ipv4Len+6], ip[ipv4Len+7] = 0, 0
		}
		b.send(Inside, slices.Clone(ip))
		out := b.take(Outside)
		if out.src.Addr() != public || out.dst.Addr() != remote || out.ttl() != ttl-1 || len(out.ip) != len(ip) {
			rt.Fatalf("%v to %v left as %v to %v with TTL %d", src, dst, out.src, out.dst, out.ttl())
		}
		if string(out.l4[len(out.l4)-len(payload):]) != string(payload) {
			rt.Fatal("the payload changed")
		}
		back := datagram(proto, out.dst, out.src, 64, payload)
		if proto == protoICMP {
			back = echoReply(out)
		}
		b.send(Outside, back)
		if in := b.take(Inside); in.dst.Addr() != host || in.src.Addr() != remote || in.dst.Port() != src.Port() {
			rt.Fatalf("the answer came in as %v to %v, want %v to %v", in.src, in.dst, dst, src)
		}
	})
}

// echoReply is what a host makes of an echo.
func echoReply(p packet) []byte {
	b := datagram(protoICMP, at(p.dst.Addr(), p.src.Port()), at(p.src.Addr(), 0), 64, p.l4[8:])
	b[ipv4Len], b[ipv4Len+2], b[ipv4Len+3] = icmpEchoReply, 0, 0
	binary.BigEndian.PutUint16(b[ipv4Len+2:], checksum(0, b[ipv4Len:]))
	return b
}

func TestAPacketThatIsBrokenStaysBroken(t *testing.T) {
	for _, proto := range []uint8{protoUDP, protoTCP, protoICMP} {
		b := newBench(t, Config{})
		ip := datagram(proto, at(host, 5000), at(server, 7000), 64, []byte("hello"))
		ip[len(ip)-1] ^= 0x10
		b.send(Inside, ip)
		f := b.sent[Outside][0]
		if p := parse(f[etherLen:], false, false); whole(p) {
			t.Errorf("protocol %d: the router mended a checksum that was wrong", proto)
		}
	}
	b := newBench(t, Config{})
	ip := datagram(protoUDP, at(host, 5000), at(server, 7000), 64, nil)
	ip[10] ^= 1
	b.send(Inside, ip)
	b.silent()
	if b.Counts()[malformedVerdict] != 1 {
		t.Errorf("a wrong header checksum was not noticed: %v", b.Counts())
	}
}

func TestTheHopsOutsideEndWhatIsNotMeantToArrive(t *testing.T) {
	b := newBench(t, Config{Hops: 5})
	b.send(Inside, datagram(protoUDP, at(host, 5000), at(server, 7000), 6, []byte("opener")))
	b.silent()
	b.send(Inside, datagram(protoUDP, at(host, 5000), at(server, 7000), 7, []byte("probe")))
	if p := b.take(Outside); p.ttl() != 1 {
		t.Errorf("a TTL of 7 became %d over 6 hops", p.ttl())
	}
	b.send(Outside, datagram(protoUDP, at(server, 7000), at(public, 5000), 5, nil))
	b.silent()
	b.send(Outside, datagram(protoUDP, at(server, 7000), at(public, 5000), 7, nil))
	if p := b.take(Inside); p.ttl() != 1 {
		t.Errorf("a TTL of 7 became %d over 6 hops", p.ttl())
	}
}

func TestIPv6PassesTheFilterUntranslated(t *testing.T) {
	b := newBench(t, Config{})
	for _, proto := range []uint8{protoUDP, protoTCP} {
		out := datagram(proto, at(host6, 5000), at(server6, 7000), 64, []byte("x"))
		back := datagram(proto, at(server6, 7000), at(host6, 5000), 64, []byte("x"))
		b.send(Outside, slices.Clone(back))
		b.silent()
		b.send(Inside, out)
		if p := b.take(Outside); p.src != at(host6, 5000) || p.ttl() != 63 {
			t.Errorf("it left from %v with %d hops", p.src, p.ttl())
		}
		b.send(Outside, back)
		if p := b.take(Inside); p.dst != at(host6, 5000) {
			t.Errorf("the answer went to %v", p.dst)
		}
	}
	b.send(Inside, datagram(protoICM6, at(host6, 77), at(home6.Addr(), 0), 64, []byte("ping")))
	if p := b.take(Inside); p.icmp != icmp6EchoReply || p.dst.Addr() != host6 {
		t.Errorf("the router answered an echo with type %d to %v", p.icmp, p.dst)
	}
}

func TestFragmentsAndStrangeProtocolsAreDroppedAndCounted(t *testing.T) {
	b := newBench(t, Config{})
	f := datagram(protoUDP, at(host, 5000), at(server, 7000), 64, []byte("hello"))
	f[6] = 0x20 // more fragments
	f[10], f[11] = 0, 0
	binary.BigEndian.PutUint16(f[10:], checksum(0, f[:ipv4Len]))
	b.send(Inside, f)
	gre := datagram(protoUDP, at(host, 5000), at(server, 7000), 64, []byte("hello"))
	gre[9] = 47
	gre[10], gre[11] = 0, 0
	binary.BigEndian.PutUint16(gre[10:], checksum(0, gre[:ipv4Len]))
	b.send(Inside, gre)
	b.send(Outside, datagram(protoUDP, at(server, 5000), at(faraway, 7000), 64, nil))
	b.silent()
	for _, v := range []string{fragmentVerdict, unsupportedVerdict, vnet.DropNoRoute.String()} {
		if b.Counts()[v] != 1 {
			t.Errorf("%q was counted %d times, want once: %v", v, b.Counts()[v], b.Counts())
		}
	}
	if len(b.told) != 3 || !b.told[0].Dropped || b.told[0].Dst.Addr() != server {
		t.Errorf("the trace is %+v", b.told)
	}
}

func TestAnEventIsOneLineOfJSONThatSaysAll(t *testing.T) {
	b := newBench(t, Config{Name: "home"})
	b.send(Inside, datagram(protoUDP, at(host, 5000), at(server, 7000), 64, []byte("hello")))
	line, err := json.Marshal(b.told[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"router":"home"`, `"from":"inside"`, `"protocol":"udp"`, `"src":"192.168.1.2:5000"`,
		`"dst":"203.0.113.2:7000"`, `"new_src":"203.0.113.3:5000"`, `"ttl":64`, `"bytes":33`, `"verdict":"forwarded"`} {
		if !strings.Contains(string(line), want) {
			t.Errorf("%s lacks %s", line, want)
		}
	}
}

func TestAConfigThatCannotBeIsRefusedInASentence(t *testing.T) {
	good := Config{Inside: Interface{Prefix4: home}, Outside: Interface{Prefix4: internet}, NAT: cone}
	for why, spoil := range map[string]func(*Config){
		"is not in 203.0.113.0/24":  func(c *Config) { c.NAT.Public = []netip.Addr{faraway} },
		"needs an IPv4 address":     func(c *Config) { c.Outside.Prefix4 = netip.Prefix{} },
		"needs a mapping behaviour": func(c *Config) { c.NAT.Mapping = 0 },
		"loses is between 0 and 1":  func(c *Config) { c.Link.Loss = 2 },
	} {
		c := good
		spoil(&c)
		if _, err := New(c, nil); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("want an error that says %q, got %v", why, err)
		}
	}
}

func FuzzHandleSurvivesAnyFrame(f *testing.F) {
	for _, ip := range [][]byte{
		datagram(protoUDP, at(host, 5000), at(server, 7000), 64, []byte("x")),
		datagram(protoTCP, at(host, 5000), at(server, 7000), 64, nil),
		datagram(protoICMP, at(host, 5000), at(server, 7), 64, nil),
		datagram(protoUDP, at(host6, 5000), at(server6, 7000), 64, []byte("x")),
		datagram(protoICM6, at(host6, 5000), at(home6.Addr(), 7), 64, nil),
		icmpError(server, parse(datagram(protoUDP, at(public, 9), at(server, 9), 64, nil), false, true), icmpUnreachable, 3),
	} {
		f.Add(true, append(append(make([]byte, 12), 8, 0), ip...))
		f.Add(false, append(append(make([]byte, 12), 0x86, 0xdd), ip...))
	}
	r := &Router{legs: [2]leg{{Interface: Interface{Prefix6: home6}}}}
	f.Add(true, r.arp(Inside, 1, broadcast, home.Addr(), host))
	f.Add(true, r.solicitation(Inside, host6))
	f.Fuzz(func(t *testing.T, inside bool, frame []byte) {
		b := newBench(t, Config{Hops: 2})
		leg := Outside
		if inside {
			leg = Inside
		}
		if len(frame) >= 6 {
			copy(frame, b.legs[leg].MAC[:])
		}
		b.Handle(b.now, leg, frame)
		b.Handle(b.now, 1-leg, slices.Clone(frame))
		b.Poll(b.now.Add(time.Hour))
		for _, sent := range b.sent {
			for _, f := range sent {
				if len(f) < etherLen {
					t.Errorf("a frame of %d bytes was sent", len(f))
				}
			}
		}
	})
}

func BenchmarkForwardingOneFlow(b *testing.B) {
	for name, link := range map[string]vnet.LinkConfig{"plain": {}, "delayed": {Delay: time.Millisecond}} {
		b.Run(name, func(b *testing.B) {
			w := newBench(b, Config{Link: link})
			sent := 0
			w.Router.out = func(Leg, []byte) { sent++ }
			w.SetTrace(nil)
			ip := datagram(protoUDP, at(host, 5000), at(server, 7000), 64, make([]byte, 1200))
			frame := make([]byte, etherLen+len(ip))
			now := start
			b.ReportAllocs()
			for b.Loop() {
				copy(frame, w.legs[Inside].MAC[:])
				binary.BigEndian.PutUint16(frame[12:], typeIPv4)
				copy(frame[etherLen:], ip)
				w.Handle(now, Inside, frame)
				now = now.Add(10 * time.Microsecond)
				w.Poll(now)
			}
			if sent == 0 {
				b.Fatal("nothing was sent")
			}
		})
	}
}

func TestAUDPSumNeverBecomesNoneByTranslation(t *testing.T) {
	b := newBench(t, Config{})
	var payload [2]byte
	seen := 0
	for i := range 1 << 16 {
		binary.BigEndian.PutUint16(payload[:], uint16(i))
		b.send(Inside, datagram(protoUDP, at(host, 5000), at(server, 7000), 64, payload[:]))
		out := b.take(Outside) // which must be whole, but no sum at all counts as such
		switch binary.BigEndian.Uint16(out.l4[6:]) {
		case 0: // RFC 768: sent without
			t.Fatalf("with the payload %x the sum became none", payload)
		case 0xffff:
			seen++
		}
	}
	if seen == 0 {
		t.Error("no sum came out as all ones, so the case was not there")
	}
}

func TestTheWayOutsideHoldsPacketsBackInEachDirection(t *testing.T) {
	const delay = 7 * time.Millisecond
	b := newBench(t, Config{Link: vnet.LinkConfig{Delay: delay}})
	due := func() {
		t.Helper()
		b.silent()
		if next := b.Poll(b.now); !next.Equal(b.now.Add(delay)) {
			t.Fatalf("it wants to be woken after %v, want %v", next.Sub(b.now), delay)
		}
		b.now = b.now.Add(delay)
		b.Poll(b.now)
	}
	b.send(Inside, datagram(protoUDP, at(host, 5000), at(server, 7000), 64, nil))
	due()
	out := b.take(Outside)
	b.send(Outside, datagram(protoUDP, at(server, 7000), out.src, 64, nil))
	due()
	b.take(Inside)
	b.SetUp(false)
	b.send(Inside, datagram(protoUDP, at(host, 5000), at(server, 7000), 64, nil))
	b.send(Outside, datagram(protoUDP, at(server, 7000), out.src, 64, nil))
	b.Poll(b.now.Add(time.Hour))
	b.silent()
	if b.Counts()[vnet.DropDown.String()] != 2 || !b.told[len(b.told)-1].Dropped {
		t.Errorf("the counts are %v", b.Counts())
	}
}
