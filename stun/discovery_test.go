package stun_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weft"
	"weft/lab/vnet"
	"weft/stun"
)

var eim = vnet.NATConfig{Mapping: weft.EndpointIndependentMapping, Filtering: weft.EndpointIndependentFiltering, Allocation: weft.SequentialAllocation, Step: 1, Hairpin: true}

func kind(m weft.Mapping, f weft.Filtering) vnet.NATConfig {
	return vnet.NATConfig{Mapping: m, Filtering: f, Allocation: weft.SequentialAllocation, Step: 1}
}

func everyKind(f func(vnet.NATConfig)) {
	for _, m := range mappings {
		for _, fl := range filterings {
			f(kind(m, fl))
		}
	}
}

func TestSeveralServersWithOneAddressEachTellTheMapping(t *testing.T) {
	a1, a2, b1, c1 := ap("192.0.2.1:1"), ap("192.0.2.1:2"), ap("192.0.2.2:1"), ap("192.0.2.3:1")
	dead1, dead2 := ap("192.0.2.9:1"), ap("192.0.2.8:1")
	all := [3]weft.Mapping(mappings)
	const unknown = weft.MappingUnknown
	for name, tc := range map[string]struct {
		servers []netip.AddrPort
		want    [3]weft.Mapping // for each of mappings
	}{
		"none":                {nil, [3]weft.Mapping{}},
		"one":                 {[]netip.AddrPort{a1}, [3]weft.Mapping{}},
		"one twice":           {[]netip.AddrPort{a1, a1}, [3]weft.Mapping{}},
		"two addresses":       {[]netip.AddrPort{a1, b1}, [3]weft.Mapping{all[0], unknown, unknown}},
		"two ports":           {[]netip.AddrPort{a1, a2}, [3]weft.Mapping{unknown, unknown, all[2]}},
		"ports and addresses": {[]netip.AddrPort{a1, b1, a2}, all},
		"one of three dead":   {[]netip.AddrPort{a1, dead1, c1}, [3]weft.Mapping{all[0], unknown, unknown}},
		"the first dead":      {[]netip.AddrPort{dead1, a1, b1, a2}, all},
		"all dead":            {[]netip.AddrPort{dead1, dead2}, [3]weft.Mapping{}},
	} {
		t.Run(name, func(t *testing.T) {
			for i, m := range mappings {
				w := newWorld(t, kind(m, weft.AddressDependentFiltering)).relay(a1, 1).relay(a2, 1).relay(b1, 1).relay(c1, 1)
				r, took := w.discover(t, tc.servers...)
				if r.Mapping != tc.want[i] || r.Filtering != weft.FilteringUnknown {
					t.Errorf("%v: found %v, %v", m, r.Mapping, r.Filtering)
				}
				if want := m != weft.EndpointIndependentMapping; tc.want == all && r.Varies != want {
					t.Errorf("%v: varies: %v", m, r.Varies)
				}
				if took > 6*time.Second {
					t.Errorf("%v: took %v", m, took)
				}
			}
		})
	}
}

func TestADeadServerHardlyHoldsUpTheOthers(t *testing.T) {
	w := newWorld(t, eim).relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB)
	r, took := w.discover(t, ap("198.51.100.9:9"), relayA, ap("198.51.100.8:9"), relayB)
	if want := w.nat.Config().NAT(); r.NAT != want || took > 4*time.Second {
		t.Errorf("found %v after %v", r.NAT, took)
	}
}

func TestFewerSocketsTellLess(t *testing.T) {
	for sockets, want := range map[int]weft.NAT{
		0: {Mapping: eim.Mapping},
		1: {Mapping: eim.Mapping},
		2: {Mapping: eim.Mapping, Filtering: eim.Filtering},
		4: {Mapping: eim.Mapping, Filtering: eim.Filtering, Allocation: weft.SequentialAllocation, Step: 1, Hairpin: weft.Supported},
		7: eim.NAT(),
		9: eim.NAT(), // of which the last two are not made use of
	} {
		w := newWorld(t, eim).relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB)
		c := w.config(relayA, relayB)
		c.Ports = append(c.Ports, 1, 2)[:sockets]
		if sockets == 0 {
			c.Ports = nil
			w.bare = 40000
		}
		if r, _ := w.run(t, c); r.NAT != want {
			t.Errorf("%d sockets: found %+v, want %+v", sockets, r.NAT, want)
		}
	}
}

func TestRelaysThatWillNotProbeLeaveTheFilterUnknownUnlessItAsksForThePort(t *testing.T) {
	everyKind(func(c vnet.NATConfig) {
		w := newWorld(t, c).relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB)
		w.refuse = true
		r, took := w.discover(t, relayA, relayB)
		if want := onlyPortFiltering(c.NAT()).Filtering; r.Mapping != c.Mapping || r.Filtering != want {
			t.Errorf("%v: found %v, %v", w.nat, r.Mapping, r.Filtering)
		}
		if took > 6*time.Second {
			t.Errorf("%v: took %v", w.nat, took)
		}
	})
}

// A relay sends its probes to the address at which it knows the node. If the sockets of the tests have another one,
// nothing will come, and that means nothing.
func TestProbesThatGoToAnotherAddressMeanNothing(t *testing.T) {
	everyKind(func(c vnet.NATConfig) {
		w := newWorld(t, c).relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB)
		for i := range w.probers {
			w.probers[i].Seen = publics[3]
		}
		r, _ := w.discover(t, relayA, relayB)
		if want := onlyPortFiltering(c.NAT()).Filtering; r.Filtering != want {
			t.Errorf("%v: found %v", w.nat, r.Filtering)
		}
	})
}

// A NAT that moves all its mappings, or forgets them, while it is looked at; and relays that are switched off.
func TestAWorldThatChangesMeanwhileIsFoundRightOrNotAtAll(t *testing.T) {
	for name, disturb := range map[string]func(*world){
		"mappings move":        func(w *world) { w.nat.Rebind(w.now) },
		"mappings are dropped": func(w *world) { w.nat.Forget() },
		"a relay dies":         func(w *world) { w.kill(relayA.Addr()) },
		"the other relay dies": func(w *world) { w.kill(relayB.Addr()) },
		"all relays die":       func(w *world) { clear(w.servers) },
	} {
		t.Run(name, func(t *testing.T) {
			known := 0
			for at := time.Duration(0); at < 5*time.Second; at += 37 * time.Millisecond {
				everyKind(func(c vnet.NATConfig) {
					c.Seed = uint64(at)
					c.Hairpin = at/(37*time.Millisecond)%2 == 0
					w := newWorld(t, c).relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB)
					w.disturb, w.disturbAt = disturb, at
					r, _ := w.discover(t, relayA, relayB)
					if bad := wrong(r.NAT, c.NAT()); bad != nil {
						t.Errorf("%v, after %v: %v", w.nat, at, bad)
					}
					if r.NAT == fleets["two relays"].told(c.NAT()) {
						known++
					}
				})
			}
			if known == 0 {
				t.Error("nothing was ever found: the test shows nothing")
			}
		})
	}
}

func TestOfTwoNATsInARowTheStricterIsFound(t *testing.T) {
	everyKind(func(inner vnet.NATConfig) {
		everyKind(func(outer vnet.NATConfig) {
			outer.Seed = 7
			w := newWorld(t, outer).relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB)
			inner.Public = []netip.Addr{netip.MustParseAddr("100.64.0.9")}
			w.inner = newNAT(t, inner)
			r, _ := w.discover(t, relayA, relayB)
			m, f := max(inner.Mapping, outer.Mapping), max(inner.Filtering, outer.Filtering)
			if r.Mapping != m || r.Filtering != f {
				t.Errorf("%v behind %v: found %v, %v", w.inner, w.nat, r.Mapping, r.Filtering)
			}
		})
	})
}

func TestArbitraryPoolingIsNotedAndDoesNotMislead(t *testing.T) {
	filters, pooled, all := 0, 0, 0
	everyNAT(t, func(t *testing.T, c vnet.NATConfig) {
		for seed := range uint64(8) {
			c := c
			c.Seed = c.Seed*100 + seed
			c.Public, c.Pooling = publics, vnet.ArbitraryPooling
			w := newWorld(t, c).relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB)
			r, _ := w.discover(t, relayA, relayB)
			truth := w.nat.Config().NAT()
			if bad := wrong(r.NAT, truth); bad != nil || r.Mapping != truth.Mapping {
				t.Errorf("%v: found %v", w.nat, r.NAT)
			}
			all++
			if r.Filtering == truth.Filtering {
				filters++
			}
			if len(r.Outside) > 1 {
				pooled++
			}
		}
	})
	t.Logf("of %d NATs, %d were seen to pool their addresses, and of %d the filter was found", all, pooled, filters)
	if pooled < all*99/100 || filters < all*3/4 {
		t.Errorf("of %d NATs, %d were seen to pool their addresses, and of %d the filter was found", all, pooled, filters)
	}
}

func TestADeadAlternateIsNotTakenForAFilter(t *testing.T) {
	p, q := fourSockets.IPv4.Primary, fourSockets.IPv4.Alternate
	otherPort := netip.AddrPortFrom(p.Addr(), q.Port())
	otherAddr := netip.AddrPortFrom(q.Addr(), p.Port())
	for name, tc := range map[string]struct {
		dead []netip.AddrPort
		want func(m weft.Mapping, f weft.Filtering) (weft.Mapping, weft.Filtering)
	}{
		"the alternate address": {[]netip.AddrPort{q, otherAddr}, func(m weft.Mapping, f weft.Filtering) (weft.Mapping, weft.Filtering) {
			if m != weft.AddressAndPortDependentMapping { // two ports of one address are left
				m = weft.MappingUnknown
			}
			if f != weft.AddressAndPortDependentFiltering {
				f = weft.FilteringUnknown
			}
			return m, f
		}},
		"the alternate port": {[]netip.AddrPort{q, otherPort}, func(m weft.Mapping, f weft.Filtering) (weft.Mapping, weft.Filtering) {
			if m != weft.EndpointIndependentMapping {
				m = weft.MappingUnknown
			}
			return m, weft.FilteringUnknown
		}},
		"all alternates": {[]netip.AddrPort{q, otherPort, otherAddr}, func(weft.Mapping, weft.Filtering) (weft.Mapping, weft.Filtering) {
			return weft.MappingUnknown, weft.FilteringUnknown
		}},
	} {
		t.Run(name, func(t *testing.T) {
			everyKind(func(c vnet.NATConfig) {
				w := newWorld(t, c).four(&fourSockets)
				for _, a := range tc.dead {
					w.servers[a] = nil
				}
				r, _ := w.discover(t, p)
				if m, f := tc.want(c.Mapping, c.Filtering); r.Mapping != m || r.Filtering != f {
					t.Errorf("%v: found %v, %v; want %v, %v", w.nat, r.Mapping, r.Filtering, m, f)
				}
			})
		})
	}
}

func TestADeadAlternatePortIsNotTakenForAFilter(t *testing.T) {
	for _, f := range filterings {
		w := newWorld(t, kind(weft.EndpointIndependentMapping, f)).relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB)
		w.servers[netip.AddrPortFrom(relayA.Addr(), relayA.Port()+1)] = nil
		w.servers[netip.AddrPortFrom(relayB.Addr(), relayB.Port()+1)] = nil
		r, _ := w.discover(t, relayA, relayB)
		want := weft.FilteringUnknown
		if f == weft.EndpointIndependentFiltering {
			want = f // a relay's probe comes in
		}
		if r.Filtering != want || r.Mapping != weft.EndpointIndependentMapping {
			t.Errorf("%v: found %v, %v", f, r.Mapping, r.Filtering)
		}
	}
}

// Some servers name an alternate address and can't use it.
func TestAServerThatDoesNotHonourChangesTellsNothingOfTheFilter(t *testing.T) {
	primary := fourSockets.IPv4.Primary
	plain := func(req []byte) []byte {
		m, _ := stun.Parse(req)
		return stun.AppendBindingRequest(nil, m.ID, stun.Request{})
	}
	for name, change := range map[string]server{
		"answers as if not asked to": func(req []byte, from, local netip.AddrPort) (stun.Reply, bool) {
			return fourSockets.Respond(nil, plain(req), from, local)
		},
		"refuses": served(&stun.Responder{}),
		"changes its port only": func(req []byte, from, local netip.AddrPort) (stun.Reply, bool) {
			if m, _ := stun.Parse(req); m.Change&stun.ChangeIP != 0 {
				return (&stun.Responder{}).Respond(nil, req, from, local)
			}
			return fourSockets.Respond(nil, req, from, local)
		},
		"answers nonsense": func(req []byte, from, local netip.AddrPort) (stun.Reply, bool) {
			r, ok := fourSockets.Respond(nil, plain(req), from, local)
			r.Packet = append(r.Packet, 0x7f, 1, 0, 0) // an attribute that nobody knows
			r.Packet[3] += 4
			return r, ok
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, filtering := range filterings {
				w := newWorld(t, kind(weft.EndpointIndependentMapping, filtering)).four(&fourSockets)
				w.servers[primary] = func(req []byte, from, local netip.AddrPort) (stun.Reply, bool) {
					if m, _ := stun.Parse(req); m.Change != 0 {
						return change(req, from, local)
					}
					return fourSockets.Respond(nil, req, from, local)
				}
				r, _ := w.discover(t, primary)
				want := weft.FilteringUnknown
				if name == "changes its port only" && filtering == weft.AddressAndPortDependentFiltering {
					want = filtering // the port is filtered, so the address is
				}
				if r.Mapping != weft.EndpointIndependentMapping || r.Filtering != want {
					t.Errorf("%v: found %v, %v", filtering, r.Mapping, r.Filtering)
				}
			}
		})
	}
}

func TestAnAlternateAddressThatMakesNoSenseIsNotFollowed(t *testing.T) {
	primary := fourSockets.IPv4.Primary
	for name, other := range map[string]string{
		"the same address": "192.0.2.1:9",
		"the same port":    "192.0.2.2:3478",
		"loopback":         "127.0.0.1:9",
		"nowhere":          "0.0.0.0:9",
		"port 0":           "192.0.2.2:0",
		"multicast":        "224.0.0.1:9",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, eim)
			w.servers[primary] = func(req []byte, from, local netip.AddrPort) (stun.Reply, bool) {
				r, ok := (&stun.Responder{}).Respond(nil, req, from, local)
				a := ap(other)
				ip := a.Addr().As4()
				r.Packet = append(r.Packet, 0x80, 0x2c, 0, 8, 0, 1, byte(a.Port()>>8), byte(a.Port()), ip[0], ip[1], ip[2], ip[3])
				r.Packet[3] += 12
				return r, ok
			}
			c := w.config(primary)
			r, _ := w.run(t, c)
			if r.Mapping != weft.MappingUnknown || r.Filtering != weft.FilteringUnknown || len(r.Seen) == 0 {
				t.Errorf("found %v, %v", r.Mapping, r.Filtering)
			}
			for to := range w.asked {
				if to != primary && to.Addr() != publics[0] { // or a packet for hairpinning
					t.Errorf("sent to %v", to)
				}
			}
		})
	}
}

func TestADiscoveryHearsOnlyWhatIsMeantForIt(t *testing.T) {
	d := stun.NewDiscovery(epoch, stun.DiscoveryConfig{Servers: []netip.AddrPort{relayA}, Ports: []uint16{40000, 40001}})
	a, _, _ := d.Poll(epoch)
	if a.Packet == nil || a.To != relayA || a.Socket != 0 {
		t.Fatalf("begins with %+v", a)
	}
	client := ap("203.0.113.9:61000")
	relay := stun.Responder{}
	answer := func(req []byte) []byte { r, _ := relay.Respond(nil, req, client, relayA); return r.Packet }
	stray := answer(stun.AppendBindingRequest(nil, stun.NewTransactionID(), stun.Request{}))
	for name, p := range map[string]struct {
		socket int
		b      []byte
		from   netip.AddrPort
	}{
		"nothing":              {0, nil, relayA},
		"a byte":               {0, []byte{0}, relayA},
		"its own question":     {0, a.Packet, relayA},
		"an answer to another": {0, stray, relayA},
		"WireGuard's":          {0, make([]byte, 148), relayA},
		"from another server":  {0, answer(a.Packet), relayB},
		"at another socket":    {1, answer(a.Packet), relayA},
		"at no socket":         {9, answer(a.Packet), relayA},
	} {
		if d.Handle(epoch, p.socket, p.b, p.from) {
			t.Errorf("took %s", name)
		}
	}
	if !d.Handle(epoch, 0, answer(a.Packet), relayA) {
		t.Error("did not take its answer")
	}
	if seen := d.Report().Seen; len(seen) != 1 || seen[0] != (stun.Observation{Server: relayA, Mapped: client}) {
		t.Errorf("saw %v", seen)
	}
	d.Probed(epoch, stun.NewTransactionID(), true) // which nobody asked for
}

// A server that drops what asks for a change shows nothing by it. That its silence contradicts what came in otherwise
// is told from a filter.
func TestSilenceThatContradictsWhatCameInIsNotBelieved(t *testing.T) {
	w := newWorld(t, eim).relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB)
	for a, s := range w.servers {
		w.servers[a] = func(req []byte, from, local netip.AddrPort) (stun.Reply, bool) {
			if m, _ := stun.Parse(req); m.Change != 0 {
				return stun.Reply{}, false
			}
			return s(req, from, local)
		}
	}
	if r, _ := w.discover(t, relayA, relayB); r.Filtering != weft.FilteringUnknown || r.Mapping != eim.Mapping {
		t.Errorf("found %v", r.NAT)
	}
}

func TestAServerThatSaysThatWeAreAtOurLoopbackDoesNotMakeUsSendThere(t *testing.T) {
	w := newWorld(t, eim)
	w.servers[relayA] = func(req []byte, from, local netip.AddrPort) (stun.Reply, bool) {
		r, ok := (&stun.Responder{}).Respond(nil, req, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 53), local)
		r.To = from
		return r, ok
	}
	w.discover(t, relayA)
	for to := range w.asked {
		if to != relayA {
			t.Errorf("sent to %v", to)
		}
	}
}

// Somebody who can send from the relay's address, but does not see its packets, does not know what it was asked for.
func TestAForgedProbeDoesNotOpenAFilter(t *testing.T) {
	c := kind(weft.EndpointIndependentMapping, weft.AddressDependentFiltering)
	w := newWorld(t, c).relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB)
	w.forge = func(d *stun.Discovery, a stun.Action) {
		for i := range stun.DiscoverySockets {
			m := stun.AppendBindingRequest(nil, stun.NewTransactionID(), stun.Request{})
			r, _ := (&stun.Responder{}).Respond(nil, m, publicsPort(a.Probe.Port), a.To)
			if d.Handle(w.now, i, r.Packet, a.To) {
				t.Errorf("socket %d took a probe with another ID", i)
			}
			r, _ = (&stun.Responder{}).Respond(nil, stun.AppendBindingRequest(nil, a.Probe.ID, stun.Request{}), publicsPort(a.Probe.Port), a.To)
			if d.Handle(w.now, i, r.Packet, ap("198.51.100.1:3478")) {
				t.Errorf("socket %d took a probe from another address", i)
			}
		}
	}
	if r, _ := w.discover(t, relayA, relayB); r.Filtering != c.Filtering {
		t.Errorf("found %v", r.Filtering)
	}
}

func publicsPort(port uint16) netip.AddrPort { return netip.AddrPortFrom(publics[0], port) }

func TestLongWaysAreWaitedFor(t *testing.T) {
	for _, rtt := range []time.Duration{5 * time.Millisecond, 250 * time.Millisecond, 650 * time.Millisecond} {
		t.Run(fmt.Sprint(rtt), func(t *testing.T) {
			everyKind(func(c vnet.NATConfig) {
				w := newWorld(t, c).relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB)
				w.rtt = rtt
				r, took := w.discover(t, relayA, relayB)
				if want := fleets["two relays"].told(w.nat.Config().NAT()); r.NAT != want {
					t.Errorf("found %v, want %v", r.NAT, want)
				}
				if took > 5*time.Second+25*rtt {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}
