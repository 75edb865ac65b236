package stun

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	ap = netip.MustParseAddrPort

	client4 = ap("198.51.100.7:40000")
	client6 = ap("[2001:db8::7]:40000")
	server4 = ap("192.0.2.1:3478")
	server6 = ap("[2001:db8:1::1]:3478")

	twoAddresses = Responder{
		IPv4: Alternates{server4, ap("192.0.2.2:3479")},
		IPv6: Alternates{server6, ap("[2001:db8:1::2]:3479")},
	}
)

// twoPorts is a server with one address and two ports.
var twoPorts = Responder{Ports: [2]uint16{3478, 3479}}

// classic turns a request with a cookie into one of RFC 3489.
func classic(b []byte) []byte {
	b = bytes.Clone(b)
	copy(b[4:], "\xde\xad\xbe\xef")
	return b
}

func respond(t testing.TB, r *Responder, req []byte, from, local netip.AddrPort) (Reply, Message) {
	t.Helper()
	reply, ok := r.Respond(nil, req, from, local)
	if !ok {
		t.Fatal("no answer")
	}
	classic := !Is(reply.Packet)
	m, err := parse(reply.Packet, classic)
	if err != nil {
		t.Fatalf("the answer can't be read: %v", err)
	}
	if !lengthFits(reply.Packet) || !bytes.Equal(reply.Packet[4:headerLen], req[4:headerLen]) {
		t.Fatalf("the answer's header is wrong: % x", reply.Packet[:headerLen])
	}
	return reply, m
}

func TestAReplyIsTheseBytes(t *testing.T) {
	const id = "0102030405060708090a0b0c"
	bare := AppendBindingRequest(nil, testID, Request{})
	for name, tc := range map[string]struct {
		r           Responder
		req         []byte
		from, local netip.AddrPort
		want        string
	}{
		"one address": {Responder{}, bare, client4, server4, "0101 0018 2112a442" + id +
			"0020 0008 0001 bd52 e721c045" +
			"802b 0008 0001 0d96 c0000201"},
		"one address, IPv6": {Responder{}, bare, client6, server6, "0101 0018 2112a442" + id +
			"0020 0014 0002 bd52 0113a9fa 01020304 05060708 090a0b0b"},
		"origin not known": {Responder{Software: "weft"}, bare, client4, ap("0.0.0.0:3478"), "0101 0018 2112a442" + id +
			"0020 0008 0001 bd52 e721c045" +
			"0001 0008 0001 9c40 c6336407"},
		"two addresses": {twoAddresses, bare, client4, server4, "0101 0030 2112a442" + id +
			"0020 0008 0001 bd52 e721c045" +
			"802b 0008 0001 0d96 c0000201" +
			"802c 0008 0001 0d97 c0000202" +
			"0001 0008 0001 9c40 c6336407"},
		"one address, two ports": {twoPorts, bare, client4, server4, "0101 0014 2112a442" + id +
			"0020 0008 0001 bd52 e721c045" +
			"d757 0004 0d97 0000"},
		"one address, two ports, IPv6": {twoPorts, bare, client6, server6, "0101 0020 2112a442" + id +
			"0020 0014 0002 bd52 0113a9fa 01020304 05060708 090a0b0b" +
			"d757 0004 0d97 0000"},
		"multiplexed": {Responder{Software: "weft"}, AppendBindingRequest(nil, testID, Request{Fingerprint: true}), client4, netip.AddrPort{}, "0101 0020 2112a442" + id +
			"0020 0008 0001 bd52 e721c045" +
			"0001 0008 0001 9c40 c6336407" +
			"8028 0004 c2248544"},
		"RFC 3489": {twoAddresses, classic(bare), client4, server4, "0101 0024 deadbeef" + id +
			"0001 0008 0001 9c40 c6336407" +
			"0004 0008 0001 0d96 c0000201" +
			"0005 0008 0001 0d97 c0000202"},
		"not understood": {Responder{}, message(t, 0x0001, "7f01 0000 7f02 0000 7f03 0004 00000000"), client4, server4, "0111 0028 2112a442" + id +
			"0009 0015 0000 0414 556e6b6e6f776e20417474726962757465 000000" +
			"000a 0006 7f01 7f02 7f03 0000"},
		"not understood, RFC 3489": {Responder{}, classic(message(t, 0x0001, "0002 0008 0001 0035 7f000001")), client4, server4, "0111 0010 deadbeef" + id +
			"0009 0004 0000 0414" +
			"000a 0004 0002 0002"},
		"no change possible": {Responder{}, AppendBindingRequest(nil, testID, Request{Change: ChangeIP}), client4, server4, "0111 0024 2112a442" + id +
			"0009 0015 0000 0414 556e6b6e6f776e20417474726962757465 000000" +
			"000a 0002 0003 0000"},
		"contradictory": {Responder{}, AppendBindingRequest(nil, testID, Request{ResponsePort: 9, Padding: 4}), client4, server4, "0111 0014 2112a442" + id +
			"0009 000f 0000 0400 42616420526571756573 74 00"},
	} {
		t.Run(name, func(t *testing.T) {
			want := append([]byte("before"), unhex(t, tc.want)...)
			reply, ok := tc.r.Respond([]byte("before"), tc.req, tc.from, tc.local)
			if !ok {
				t.Fatal("no answer")
			}
			if diff := cmp.Diff(hex.Dump(want), hex.Dump(reply.Packet)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if reply.From != tc.local || reply.To != tc.from {
				t.Errorf("from %v to %v, want from %v to %v", reply.From, reply.To, tc.local, tc.from)
			}
		})
	}
}

func TestNothingButABindingRequestIsAnswered(t *testing.T) {
	request := AppendBindingRequest(nil, testID, Request{Fingerprint: true})
	reply, _ := (&Responder{}).Respond(nil, request, client4, server4)
	damaged := bytes.Clone(request)
	damaged[len(damaged)-1] ^= 1
	for name, b := range map[string][]byte{
		"a success response":     reply.Packet,
		"an error response":      message(t, 0x0111, "0009 0004 00000414"),
		"an RFC 3489 response":   classic(reply.Packet),
		"an RFC 3489 error":      classic(message(t, 0x0111, "0009 0004 00000414")),
		"an indication":          message(t, 0x0011, ""),
		"a TURN allocation":      message(t, 0x0003, "0019 0004 11000000"),
		"a shared secret":        message(t, 0x0002, ""),
		"a damaged request":      damaged,
		"a cut request":          request[:20],
		"a broken attribute":     message(t, 0x0001, "0003 0000"),
		"nothing":                {},
		"one byte":               {0},
		"a WireGuard initiation": append([]byte{1}, make([]byte, 147)...),
	} {
		t.Run(name, func(t *testing.T) {
			if reply, ok := twoAddresses.Respond(nil, b, client4, server4); ok {
				t.Errorf("answered: % x", reply.Packet)
			}
		})
	}
	for name, from := range map[string]netip.AddrPort{"port 0": ap("198.51.100.7:0"), "nowhere": {}} {
		if _, ok := twoAddresses.Respond(nil, request, from, server4); ok {
			t.Errorf("answered to %s", name)
		}
	}
}

// Table 1 of RFC 5780, from each of the four sockets.
func TestAReplyLeavesFromTheSocketThatTheClientAskedFor(t *testing.T) {
	for _, alternates := range []Alternates{twoAddresses.IPv4, twoAddresses.IPv6} {
		p, q := alternates.Primary, alternates.Alternate
		client := client4
		if p.Addr().Is6() {
			client = client6
		}
		addrs, ports := []netip.Addr{p.Addr(), q.Addr()}, []uint16{p.Port(), q.Port()}
		for i, da := range addrs {
			for j, dp := range ports {
				ca, cp := addrs[1-i], ports[1-j]
				for change, want := range map[Change]netip.AddrPort{
					0:                     netip.AddrPortFrom(da, dp),
					ChangeIP:              netip.AddrPortFrom(ca, dp),
					ChangePort:            netip.AddrPortFrom(da, cp),
					ChangeIP | ChangePort: netip.AddrPortFrom(ca, cp),
				} {
					req := AppendBindingRequest(nil, testID, Request{Change: change})
					for _, old := range []bool{false, true} {
						if old {
							req = classic(req)
						}
						local := netip.AddrPortFrom(da, dp)
						reply, m := respond(t, &twoAddresses, req, client, local)
						other := netip.AddrPortFrom(ca, cp)
						if reply.From != want || m.Origin != want || m.Other != other || reply.To != client || m.Mapped != client {
							t.Errorf("to %v, change %d, classic %v: from %v, origin %v, other %v, to %v, mapped %v",
								local, change, old, reply.From, m.Origin, m.Other, reply.To, m.Mapped)
						}
					}
				}
			}
		}
	}
}

func TestAServerWithTwoPortsNamesTheOtherAndAnswersFromIt(t *testing.T) {
	for _, addr := range []string{"192.0.2.1", "0.0.0.0", "[2001:db8:1::1]", "[::]"} {
		for _, ports := range [][2]string{{"3478", "3479"}, {"3479", "3478"}} {
			local, other := ap(addr+":"+ports[0]), ap(addr+":"+ports[1])
			client := client4
			if local.Addr().Is6() {
				client = client6
			}
			for change, from := range map[Change]netip.AddrPort{0: local, ChangePort: other} {
				reply, m := respond(t, &twoPorts, AppendBindingRequest(nil, testID, Request{Change: change}), client, local)
				if reply.From != from || reply.To != client || m.Mapped != client || m.OtherPort != other.Port() || m.Other.IsValid() {
					t.Errorf("to %v, change %d: from %v to %v, mapped %v, other port %d, other address %v",
						local, change, reply.From, reply.To, m.Mapped, m.OtherPort, m.Other)
				}
			}
			for _, change := range []Change{ChangeIP, ChangeIP | ChangePort} {
				reply, m := respond(t, &twoPorts, AppendBindingRequest(nil, testID, Request{Change: change}), client, local)
				if m.Code != CodeUnknownAttribute || reply.From != local {
					t.Errorf("to %v, change %d: error %d from %v", local, change, m.Code, reply.From)
				}
			}
			// RFC 3489 knows no such server: its clients get what they get from one with one port.
			reply, m := respond(t, &twoPorts, classic(AppendBindingRequest(nil, testID, Request{})), client, local)
			if reply.From != local || m.OtherPort != 0 {
				t.Errorf("to %v, RFC 3489: from %v, other port %d", local, reply.From, m.OtherPort)
			}
			if reply, ok := twoPorts.Respond(nil, classic(AppendBindingRequest(nil, testID, Request{Change: ChangePort})), client, local); ok {
				t.Errorf("to %v, RFC 3489: answered from %v", local, reply.From)
			}
		}
	}
}

func TestAServerWithOneAddressRefusesToChangeIt(t *testing.T) {
	cases := map[string]struct {
		r     Responder
		local netip.AddrPort
	}{
		"no alternates":          {Responder{}, server4},
		"one address, two ports": {Responder{IPv4: Alternates{server4, ap("192.0.2.1:3479")}}, server4},
		"two addresses, one port": {Responder{IPv4: Alternates{server4, ap("192.0.2.2:3478")}},
			server4},
		"two families":       {Responder{IPv4: Alternates{server4, ap("[2001:db8:1::2]:3479")}}, server4},
		"wildcard alternate": {Responder{IPv4: Alternates{server4, ap("0.0.0.0:3479")}}, server4},
		"a fifth socket":     {twoAddresses, ap("192.0.2.1:3480")},
		"a third address":    {twoAddresses, ap("192.0.2.3:3478")},
		"a wildcard socket":  {twoAddresses, ap("0.0.0.0:3478")},
		"an unknown socket":  {twoAddresses, netip.AddrPort{}},
		"a third port":       {twoPorts, ap("192.0.2.1:3480")},
		"no port":            {twoPorts, netip.AddrPort{}},
		"one port twice":     {Responder{Ports: [2]uint16{3478, 3478}}, server4},
		"half of two ports":  {Responder{Ports: [2]uint16{3478, 0}}, server4},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, flags := range []string{"00000000", "00000002", "00000004", "00000006"} {
				req := message(t, 0x0001, "0003 0004"+flags)
				_, m := respond(t, &tc.r, req, client4, tc.local)
				if diff := cmp.Diff([]Attr{AttrChangeRequest}, m.UnknownAttributes()); m.Code != 420 || diff != "" {
					t.Errorf("flags %s: error %d, UNKNOWN-ATTRIBUTES (-want +got):\n%s", flags, m.Code, diff)
				}
				// RFC 3489: answered if nothing is to change, else silence.
				reply, ok := tc.r.Respond(nil, classic(req), client4, tc.local)
				if want := flags == "00000000"; ok != want {
					t.Errorf("flags %s, RFC 3489: answered %v, want %v", flags, ok, want)
				} else if ok && reply.From != tc.local {
					t.Errorf("from %v", reply.From)
				}
			}
			_, m := respond(t, &tc.r, AppendBindingRequest(nil, testID, Request{}), client4, tc.local)
			if m.Other.IsValid() || m.OtherPort != 0 {
				t.Errorf("OTHER-ADDRESS %v, alternate port %d from a server that can't honour it", m.Other, m.OtherPort)
			}
		})
	}
}

func TestAClientMayHaveTheReplyAtAnotherOfItsPorts(t *testing.T) {
	var r Responder
	req := AppendBindingRequest(nil, testID, Request{ResponsePort: 5000})
	reply, m := respond(t, &r, req, client4, server4)
	if want := ap("198.51.100.7:5000"); reply.To != want || m.Mapped != client4 {
		t.Errorf("to %v, mapped %v", reply.To, m.Mapped)
	}
	req = AppendBindingRequest(nil, testID, Request{ResponsePort: 5000, Change: ChangeIP})
	if reply, m := respond(t, &r, req, client4, server4); reply.To != ap("198.51.100.7:5000") || m.Code != 420 {
		t.Errorf("error %d to %v; a refusal must reach the port that listens", m.Code, reply.To)
	}
	for name, attributes := range map[string]string{
		"port 0":               "0027 0004 0000 0000",
		"and PADDING":          "0027 0004 1388 0000 0026 0004 00000000",
		"and PADDING of none":  "0026 0000 0027 0004 1388 0000",
		"in the shorter form,": "0027 0002 0000 0000",
	} {
		reply, m := respond(t, &r, message(t, 0x0001, attributes), client4, server4)
		if m.Code != 400 || reply.To != client4 {
			t.Errorf("%s: error %d to %v, want 400 to the sender", name, m.Code, reply.To)
		}
	}
}

func TestPaddingIsAnsweredWithNoMoreThanItself(t *testing.T) {
	for asked, want := range map[int]int{4: 4, 100: 100, 1500: 1500, 1504: 1500, MaxPadding: 1500} {
		reply, m := respond(t, &twoAddresses, AppendBindingRequest(nil, testID, Request{Padding: asked}), client6, server6)
		if !m.hasPadding || m.Padding != want || len(reply.Packet) > MaxReply {
			t.Errorf("PADDING of %d answered with %d, %d bytes in all", asked, m.Padding, len(reply.Packet))
		}
	}
}

func TestAnIPv4ClientOfAnIPv6SocketIsAnIPv4Client(t *testing.T) {
	reply, m := respond(t, &twoAddresses, AppendBindingRequest(nil, testID, Request{Change: ChangePort}),
		ap("[::ffff:198.51.100.7]:40000"), ap("[::ffff:192.0.2.1]:3478"))
	if m.Mapped != client4 || m.Origin != ap("192.0.2.1:3479") || reply.From != m.Origin {
		t.Errorf("mapped %v, origin %v, from %v", m.Mapped, m.Origin, reply.From)
	}
	if want := ap("[::ffff:198.51.100.7]:40000"); reply.To != want {
		t.Errorf("to %v: the socket needs the address in the form it gave it", reply.To)
	}
}

func TestAReplyIsHardlyLargerThanItsRequest(t *testing.T) {
	requests := map[string][]byte{}
	for _, change := range []Change{0, ChangePort} {
		for _, print := range []bool{false, true} {
			for _, padding := range []int{0, 4, 32, 1500, 60_000} {
				for _, port := range []uint16{0, 7} {
					r := Request{Change: change, Padding: padding, ResponsePort: port, Fingerprint: print}
					b := AppendBindingRequest(nil, testID, r)
					requests[fmt.Sprintf("%+v", r)] = b
					if !print {
						requests[fmt.Sprintf("classic %+v", r)] = classic(b)
					}
				}
			}
		}
	}
	for n := range 40 {
		b := message(t, 0x0001, strings.Repeat("7f01 0000", n))
		requests[fmt.Sprintf("%d unknown", n)] = b
		requests[fmt.Sprintf("%d unknown, sealed", n)] = AppendFingerprint(bytes.Clone(b))
		requests[fmt.Sprintf("%d unknown, classic", n)] = classic(b)
	}
	one := Responder{Software: "some software that has a name"}
	two, ports := twoAddresses, twoPorts
	two.Software, ports.Software = one.Software, one.Software
	for name, req := range requests {
		for _, tc := range []struct {
			r           *Responder
			from, local netip.AddrPort
			overhead    int
			limit       float64
		}{
			{&one, client4, server4, 28, 1.5}, {&one, client6, server6, 48, 1.5},
			{&ports, client4, server4, 28, 1.5}, {&ports, client6, server6, 48, 1.5},
			{&two, client4, server4, 28, 2.5}, {&two, client6, server6, 48, 2.5},
		} {
			reply, ok := tc.r.Respond(nil, req, tc.from, tc.local)
			if !ok {
				continue
			}
			if f := float64(len(reply.Packet)+tc.overhead) / float64(len(req)+tc.overhead); f > tc.limit {
				t.Errorf("%s from %v: %d bytes answered with %d, %.2f times with headers; limit %.1f",
					name, tc.from, len(req), len(reply.Packet), f, tc.limit)
			}
			if len(reply.Packet) > MaxReply {
				t.Errorf("%s: %d bytes, more than MaxReply", name, len(reply.Packet))
			}
		}
	}
}

func TestALongRequestHasRoomForOurName(t *testing.T) {
	r := Responder{Software: "weft"}
	_, m := respond(t, &r, AppendBindingRequest(nil, testID, Request{Software: "a client with a name"}), client4, server4)
	if m.Software() != "weft" || m.Origin != server4 {
		t.Errorf("Software %q, origin %v", m.Software(), m.Origin)
	}
	for _, local := range []netip.AddrPort{{}, ap("0.0.0.0:3478"), ap("[::]:3478")} {
		if _, m := respond(t, &r, AppendBindingRequest(nil, testID, Request{Padding: 100}), client6, local); m.Origin.IsValid() {
			t.Errorf("at %v, which is no address, the origin is %v", local, m.Origin)
		}
	}
}

func TestAnsweringAllocatesNothing(t *testing.T) {
	dst := make([]byte, 0, MaxReply)
	for name, req := range answerable(t) {
		for _, r := range []*Responder{&twoAddresses, &twoPorts} {
			if n := testing.AllocsPerRun(100, func() {
				if _, ok := r.Respond(dst, req, client6, server6); !ok && r == &twoAddresses {
					t.Fatal("no answer")
				}
			}); n != 0 {
				t.Errorf("%s: %v allocations", name, n)
			}
		}
	}
}

// answerable is a request of each kind that gets an answer.
func answerable(t testing.TB) map[string][]byte {
	bare := AppendBindingRequest(nil, testID, Request{})
	return map[string][]byte{
		"bare":     bare,
		"ours":     AppendBindingRequest(nil, testID, Request{Fingerprint: true, Software: "weft"}),
		"change":   AppendBindingRequest(nil, testID, Request{Change: ChangeIP | ChangePort}),
		"padding":  AppendBindingRequest(nil, testID, Request{Padding: 60_000}),
		"classic":  classic(bare),
		"unknown":  message(t, 0x0001, strings.Repeat("7f01 0000", 100)),
		"conflict": AppendBindingRequest(nil, testID, Request{ResponsePort: 1, Padding: 4}),
	}
}

func BenchmarkRespond(b *testing.B) {
	dst := make([]byte, 0, MaxReply)
	for name, req := range answerable(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				twoAddresses.Respond(dst, req, client4, server4)
			}
		})
	}
	b.Run("not STUN", func(b *testing.B) {
		junk := binary.BigEndian.AppendUint64(make([]byte, 1400), 1)
		b.ReportAllocs()
		for b.Loop() {
			twoAddresses.Respond(dst, junk, client4, server4)
		}
	})
}

func BenchmarkIs(b *testing.B) {
	req := AppendBindingRequest(nil, testID, Request{})
	b.ReportAllocs()
	for b.Loop() {
		Is(req)
	}
}

func BenchmarkParseResponse(b *testing.B) {
	reply, _ := twoAddresses.Respond(nil, AppendBindingRequest(nil, testID, Request{Fingerprint: true}), client4, server4)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(reply.Packet); err != nil {
			b.Fatal(err)
		}
	}
}
