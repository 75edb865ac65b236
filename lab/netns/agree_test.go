package netns

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft"
	"weft/lab/vnet"
)

// The same packets go through lab/vnet's NAT as a model, through lab/router between real hosts, and through the kernel:
// what Linux can do must look the same from outside, to a classifier and packet by packet.

// kernelNATs are what the kernel does, and what it amounts to.
var kernelNATs = []struct {
	name  string
	kind  NAT
	model vnet.NATConfig
	rules string // loaded besides
}{
	{"masquerade", PortRestrictedCone, vnet.NATConfig{Mapping: weft.EndpointIndependentMapping,
		Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.PreservingAllocation}, ""},
	{"masquerade fully-random", Symmetric, vnet.NATConfig{Mapping: weft.AddressAndPortDependentMapping,
		Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.RandomAllocation}, ""},
	{"an exposed host", FullCone, vnet.NATConfig{Mapping: weft.EndpointIndependentMapping,
		Filtering: weft.EndpointIndependentFiltering, Allocation: weft.PreservingAllocation}, ""},
	{"a firewall", Firewall, vnet.NATConfig{Mapping: weft.NoNAT, Filtering: weft.AddressAndPortDependentFiltering}, ""},
	// What the package's own rules avoid: an INPUT chain that accepts lets a stranger's packet take a tuple. Here the
	// sequences are not compared: once one destination has made Linux take another port, it takes that one for later
	// destinations too (find_appropriate_src looks at the newest first), and the model keeps to the first.
	{"masquerade with an accepting INPUT chain", PortRestrictedCone, vnet.NATConfig{Mapping: weft.EndpointIndependentMapping,
		Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.PreservingAllocation, Spoils: true},
		"flush chain inet lab input"},
}

// modelBench is the NAT alone, and time stands still: what waits hours in virtual time would in the others too.
func modelBench(t *testing.T, c vnet.NATConfig) vnet.Bench {
	n := must(vnet.NewNAT(c))(t)
	now := time.Now()
	return vnet.Bench{
		Out: func(src, server netip.AddrPort) (netip.AddrPort, bool) {
			from, v := n.Outbound(now, src, server)
			return from, v.Passed()
		},
		In: func(server, dst netip.AddrPort) (netip.AddrPort, bool) {
			inside, v := n.Inbound(now, server, dst)
			return inside, v.Passed()
		},
		Across: func(src, dst netip.AddrPort) (from, inside netip.AddrPort, ok bool) {
			from, inside, v := n.Hairpin(now, src, dst)
			return from, inside, v.Passed()
		},
		Wait: func(time.Duration) {},
	}
}

// realBench is hosts, servers and a router between them.
func realBench(t *testing.T, l *Lab, r *Router) vnet.Bench {
	hosts := map[netip.Addr]*Host{}
	b := vnet.Bench{Wait: func(time.Duration) {}}
	for i := range 3 {
		server, pc := must(l.AddHost(fmt.Sprint("server", i)))(t), must(r.AddHost(fmt.Sprint("pc", i)))(t)
		hosts[server.Addr()], hosts[pc.Addr()] = server, pc
		b.Servers, b.Hosts = append(b.Servers, server.Addr()), append(b.Hosts, pc.Addr())
	}
	type arrival struct {
		text     string
		from, at netip.AddrPort
	}
	arrivals := make(chan arrival, 64)
	sockets := map[netip.AddrPort]*net.UDPConn{}
	socket := func(at netip.AddrPort) *net.UDPConn {
		if c := sockets[at]; c != nil {
			return c
		}
		c := must(hosts[at.Addr()].ListenUDP(at))(t)
		t.Cleanup(func() { c.Close() })
		sockets[at] = c
		go func() {
			buf := make([]byte, 64)
			for {
				n, from, err := c.ReadFromUDPAddrPort(buf)
				switch {
				case errors.Is(err, net.ErrClosed):
					return
				case err == nil: // else an ICMP error: nobody is there
					arrivals <- arrival{string(buf[:n]), netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), at}
				}
			}
		}()
		return c
	}
	count := 0
	// send sends one datagram and waits for it for fifty times what it takes.
	send := func(src, dst netip.AddrPort) (from, at netip.AddrPort, ok bool) {
		count++
		text := fmt.Sprint("packet ", count)
		// An ICMP error about an earlier packet is told on the next send; that one has not left then.
		for range 3 {
			if _, err := socket(src).WriteToUDPAddrPort([]byte(text), dst); err == nil {
				break
			}
		}
		timeout := time.After(100 * time.Millisecond)
		for {
			select {
			case a := <-arrivals:
				if a.text == text {
					return a.from, a.at, true
				}
			case <-timeout:
				return from, at, false
			}
		}
	}
	b.Out = func(src, server netip.AddrPort) (netip.AddrPort, bool) {
		socket(server)
		from, _, ok := send(src, server)
		return from, ok
	}
	b.In = func(server, dst netip.AddrPort) (netip.AddrPort, bool) {
		_, inside, ok := send(server, dst)
		return inside, ok
	}
	b.Across = func(src, dst netip.AddrPort) (from, inside netip.AddrPort, ok bool) { return send(src, dst) }
	return b
}

// A step is one packet of a random sequence: an outbound one of a socket's to a server's port, or an inbound one of a
// server's port to where a socket was seen.
type step struct {
	out          bool
	socket       int
	server, port int
	seen         int // the how-manieth mapping that was seen
}

func randomSteps(seed uint64, n int) (steps []step) {
	rng := rand.New(rand.NewPCG(seed, seed))
	for range n {
		steps = append(steps, step{rng.IntN(2) == 0, rng.IntN(3), rng.IntN(2), rng.IntN(2), rng.IntN(1 << 16)})
	}
	return steps
}

// play sends a sequence and says what became of each packet, with mappings numbered by when they were first seen, so
// that random ports are comparable.
func play(b vnet.Bench, steps []step, ports [3]uint16) (outcomes []string) {
	var mappings []netip.AddrPort
	number := map[netip.AddrPort]int{}
	for _, s := range steps {
		server := netip.AddrPortFrom(b.Servers[s.server], uint16(7000+s.port))
		own := netip.AddrPortFrom(b.Hosts[0], ports[s.socket])
		switch {
		case s.out || len(mappings) == 0:
			from, ok := b.Out(own, server)
			if _, known := number[from]; ok && !known {
				number[from] = len(mappings)
				mappings = append(mappings, from)
			}
			outcomes = append(outcomes, fmt.Sprintf("socket %d to server %d port %d: %v by mapping %d", s.socket, s.server, s.port, ok, number[from]))
		default:
			i := s.seen % len(mappings)
			inside, ok := b.In(server, mappings[i])
			outcomes = append(outcomes, fmt.Sprintf("server %d port %d to mapping %d: %v to port %d", s.server, s.port, i, ok, inside.Port()))
		}
	}
	return outcomes
}

func TestTheModelTheLabsRouterAndTheKernelAgreeOnWhatLinuxCanDo(t *testing.T) {
	for _, k := range kernelNATs {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(20240501)
			if s := os.Getenv("WEFT_LAB_SEED"); s != "" {
				fmt.Sscan(s, &seed)
			}
			steps := randomSteps(seed, 60)
			ports := [3]uint16{6001, 6017, 6038}

			l := newLab(t)
			kernel := must(l.AddRouter("kernel", k.kind))(t)
			if k.rules != "" {
				if err := loadRules(kernel.namespace, k.rules); err != nil {
					t.Fatal(err)
				}
			}
			own := newLab(t)
			user := must(own.AddNATRouter("own", k.model))(t)

			benches := map[string]vnet.Bench{"kernel": realBench(t, l, kernel), "lab": realBench(t, own, user)}
			model := k.model
			if model.Mapping != weft.NoNAT {
				model.Public = []netip.Addr{kernel.Addr()}
			}
			b := modelBench(t, model)
			b.Hosts, b.Servers = benches["kernel"].Hosts, benches["kernel"].Servers
			want := play(b, steps, ports)
			b = modelBench(t, model)
			b.Hosts, b.Servers = benches["kernel"].Hosts, benches["kernel"].Servers
			findings := vnet.Classify(b)
			if findings.NAT.Mapping != k.model.Mapping || findings.NAT.Filtering != k.model.Filtering || findings.Spoils != k.model.Spoils {
				t.Fatalf("the model itself is classified as %+v", findings)
			}
			for name, bench := range benches {
				if k.model.Spoils {
					// see above
				} else if diff := cmp.Diff(want, play(bench, steps, ports)); diff != "" {
					t.Errorf("with the seed %d the %s does otherwise than the model (-model +%s):\n%s", seed, name, name, diff)
				}
				// Who forgets is as one that has not been used.
				router := map[string]*Router{"kernel": kernel, "lab": user}[name]
				if err := router.Forget(); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(findings, vnet.Classify(bench)); diff != "" {
					t.Errorf("the %s is classified otherwise than the model (-model +%s):\n%s", name, name, diff)
				}
			}
		})
	}
}
