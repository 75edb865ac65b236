package gather

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"weft"
	"weft/stun"
)

// A testRelay is a STUN server with one address and two ports on real sockets, which probes to order.
type testRelay struct {
	addr   netip.AddrPort
	conn   *net.UDPConn
	served *stun.Responder
	probes atomic.Int32
}

// serveRelay serves a relay on two sockets until the test ends.
func serveRelay(t *testing.T, listen func(port uint16) *net.UDPConn) *testRelay {
	t.Helper()
	conns := []net.PacketConn{listen(0), listen(0)}
	var ports [2]uint16
	for i, c := range conns {
		ports[i] = c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	}
	r := &testRelay{
		addr: conns[0].LocalAddr().(*net.UDPAddr).AddrPort(), conn: conns[0].(*net.UDPConn),
		served: &stun.Responder{Software: "weft", Ports: ports},
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- stun.Serve(ctx, r.served, conns...) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, c := range conns {
			c.Close()
		}
	})
	return r
}

func listenAt(t *testing.T, ip string) func(uint16) *net.UDPConn {
	return func(port uint16) *net.UDPConn {
		t.Helper()
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(ip), port)))
		if err != nil {
			t.Skipf("no address %s here: %v", ip, err)
		}
		return c
	}
}

// probe sends a probe to a port of an address, as a relay does that a node asks to.
func (r *testRelay) probe(t *testing.T, to netip.Addr, p stun.Probe) bool {
	r.probes.Add(1)
	request := stun.AppendBindingRequest(nil, p.ID, stun.Request{})
	reply, ok := r.served.Respond(nil, request, netip.AddrPortFrom(to, p.Port), r.addr)
	if !ok {
		t.Error("the relay's responder answers no binding request")
	}
	_, err := r.conn.WriteToUDPAddrPort(reply.Packet, reply.To)
	return err == nil
}

func TestAMachineWithoutNATAndFilterIsRecognizedOverRealSockets(t *testing.T) {
	for name, ips := range map[string][3]string{
		"IPv4": {"127.0.0.1", "127.0.0.2", "127.0.0.1"},
		"IPv6": {"::1", "", "::1"},
	} {
		t.Run(name, func(t *testing.T) {
			own := netip.MustParseAddr(ips[2])
			relays := []*testRelay{serveRelay(t, listenAt(t, ips[0]))}
			cfg := BehaviourConfig{Servers: []netip.AddrPort{relays[0].addr}, Local: []netip.Addr{own}}
			want := weft.NAT{Mapping: weft.NoNAT}
			if ips[1] != "" {
				b := serveRelay(t, listenAt(t, ips[1]))
				cfg.Servers = append(cfg.Servers, b.addr)
				cfg.Probers = []stun.Prober{{Server: b.addr, Seen: own}}
				cfg.Probe = func(_ context.Context, server netip.AddrPort, p stun.Probe) bool {
					if server != b.addr {
						t.Errorf("asked %v to probe", server)
					}
					return b.probe(t, own, p)
				}
				relays = append(relays, b)
				want.Filtering = weft.EndpointIndependentFiltering
			}
			var parts []weft.NAT
			cfg.Progress = func(r stun.Report) { parts = append(parts, r.NAT) }
			began := time.Now()
			r, err := Behaviour(t.Context(), cfg)
			if err != nil || r.NAT != want {
				t.Errorf("found %v, %v; want %v", r.NAT, err, want)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			if len(parts) == 0 || parts[0] != (weft.NAT{Mapping: weft.NoNAT}) {
				t.Errorf("known in part were %v", parts)
			}
			if rtt, err := RTT(t.Context(), relays[0].addr); err != nil || rtt <= 0 {
				t.Errorf("RTT is %v, %v", rtt, err)
			}
		})
	}
}

func TestBehaviourEndsWithItsContextAndSaysWhatIsKnown(t *testing.T) {
	r := serveRelay(t, listenAt(t, "127.0.0.1"))
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	own := netip.MustParseAddr("127.0.0.1")
	b := serveRelay(t, listenAt(t, "127.0.0.2"))
	go func() { <-asked; cancel() }()
	began := time.Now()
	report, err := Behaviour(ctx, BehaviourConfig{
		Servers: []netip.AddrPort{r.addr, b.addr}, Local: []netip.Addr{own},
		Probers: []stun.Prober{{Server: b.addr, Seen: own}},
		Probe: func(ctx context.Context, _ netip.AddrPort, _ stun.Probe) bool {
			select {
			case asked <- struct{}{}:
			case <-ctx.Done():
			}
			<-ctx.Done() // a relay that never answers
			return false
		},
	})
	if err != nil || report.Mapping != weft.NoNAT || report.Filtering != weft.FilteringUnknown {
		t.Errorf("found %v, %v", report.NAT, err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestWithoutServersThereIsNothingToFindOut(t *testing.T) {
	if _, err := Behaviour(t.Context(), BehaviourConfig{}); err == nil {
		t.Error("no error")
	}
}
