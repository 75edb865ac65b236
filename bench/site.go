package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"weft"
	"weft/key"
	"weft/lab"
	"weft/lab/netns"
	"weft/node"
)

// A site is two hosts on one link, a and b, a server beside them, and both tunnels between a and b at once: the one
// that is not measured idles.
type site struct {
	*overlayRun
	a, b            *netns.Host
	server          *lab.Server
	nodes           [2]*lab.Node // weft's daemons
	more            map[string]subject
	plain           [2]end     // plain wireguard-go
	peer            netip.Addr // b in weft's network
	pids            []int      // of all that takes part and lasts
	idle            float64    // CPU seconds per second of a machine whose tunnels carry nothing
	runs, disturbed int        // runs under load, and those of them beside other work
}

// An end is one process of a tunnel.
type end struct {
	process *netns.Process
	local   *node.Client // for profiles
}

const (
	// plainInterface and tunnelPort are the plain tunnels', at either end.
	plainInterface = "plain0"
	tunnelPort     = 51900
	// iperfPort is iperf3's, unless it is told otherwise.
	iperfPort = "5201"
)

// plainInside are the addresses inside the plain tunnel.
var plainInside = [2]netip.Addr{netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("10.99.0.2")}

// disturbance is how many CPU seconds a second of other work make a run worth another try.
const disturbance = 0.2

// jumboMTU is of an underlay with jumbo frames, and what fits into it: wireguard-go takes 80 off for IPv6, UDP and
// WireGuard, as for its 1420 of 1500; weft eight more for a relay's prefix, in steps of 8.
const (
	jumboMTU      = 9000
	jumboPlainMTU = jumboMTU - 80
	jumboWeftMTU  = jumboMTU - 96
)

// hosts adds hosts with the congestion control of the run.
func (r *overlayRun) hosts(l *netns.Lab, names ...string) ([]*netns.Host, error) {
	var hosts []*netns.Host
	for _, name := range names {
		h, err := l.AddHost(name)
		if err != nil {
			return nil, err
		}
		if err := setCongestion(h, r.Congestion); err != nil {
			return nil, err
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// site lays out the hosts and starts what is measured. It is gone with the lab.
func (r *overlayRun) site(ctx context.Context, l *netns.Lab, jumbo bool) (*site, error) {
	s := &site{overlayRun: r}
	hosts, err := r.hosts(l, "srv", "a", "b")
	if err != nil {
		return nil, err
	}
	s.a, s.b = hosts[1], hosts[2]
	plainMTU := PlainMTU
	if jumbo {
		plainMTU = jumboPlainMTU
		if err := l.Public().SetMTU(jumboMTU); err != nil {
			return nil, err
		}
	}
	r.say("two hosts and a server on one network; starting weft and plain wireguard-go")
	if err := s.startPlain(ctx, l, plainMTU); err != nil {
		return nil, err
	}
	for _, h := range []*netns.Host{s.a, s.b} {
		if err := keepOut(ctx, h); err != nil {
			return nil, err
		}
	}
	if err := s.startWeft(ctx, l, hosts[0]); err != nil {
		return nil, err
	}
	if err := s.startIperf(ctx, s.b, s.a, s.b.Addr()); err != nil {
		return nil, err
	}
	s.pids = append(append(s.pids, softirqThreads()...), s.plain[0].process.PID(), s.plain[1].process.PID(), s.nodes[0].Process.PID(), s.nodes[1].Process.PID())
	return s, s.rest(ctx)
}

func (s *site) startPlain(ctx context.Context, l *netns.Lab, mtu int) error {
	keys := [2]key.NodePrivate{key.NewPrivate[key.Node](), key.NewPrivate[key.Node]()}
	for i, h := range []*netns.Host{s.a, s.b} {
		other := []*netns.Host{s.b, s.a}[i]
		socket := filepath.Join(l.Dir(), "plain-"+h.Name+".sock")
		cmd := h.Command(ctx, s.Binary, "bench", "plain", "--interface", plainInterface, "--port", strconv.Itoa(tunnelPort),
			"--endpoint", netip.AddrPortFrom(other.Addr(), tunnelPort).String(), "--mtu", strconv.Itoa(mtu), "--profiles", socket,
			"--address", plainInside[i].String(), "--peer-address", plainInside[1-i].String())
		cmd.Stdin = strings.NewReader(keys[i].Reveal() + "\n" + keys[1-i].Public().String() + "\n")
		p, err := h.Start(cmd)
		if err != nil {
			return err
		}
		s.plain[i] = end{p, node.NewClient(socket)}
		wait, cancel := context.WithTimeout(ctx, 10*time.Second)
		err = netns.WaitFor(wait, "plain wireguard-go", func() error {
			if err := p.Err(); err != nil {
				return err
			}
			if !strings.Contains(p.Log(), "ready") {
				return errors.New("it is not ready")
			}
			return nil
		})
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// keepOut keeps weft from going through the other tunnel, which is a path like any other to it. Datagrams of iperf3 may.
func keepOut(ctx context.Context, h *netns.Host) error {
	// Not in one rule: nft 1.0 makes one comparison of two neighbouring ports, which then differ if either does.
	on := "oifname \"" + plainInterface + "\" udp "
	return rules(ctx, h, "table inet wbenchout {\nchain out {\ntype filter hook output priority 0\n"+
		on+"dport "+iperfPort+" accept\n"+on+"sport "+iperfPort+" accept\n"+on+"dport 1-65535 drop\n}\n}\n")
}

// rules gives nftables of a host its rules.
func rules(ctx context.Context, h *netns.Host, text string) error {
	cmd := h.Command(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

func (s *site) startWeft(ctx context.Context, l *netns.Lab, srv *netns.Host) error {
	fleet := lab.Fleet{Binary: s.Binary, Dir: l.Dir()}
	server, err := fleet.StartServer(ctx, srv)
	if err != nil {
		return err
	}
	s.server = server
	s.pids = append(s.pids, server.Process.PID())
	token, err := server.Token(ctx, "--reusable")
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for i, h := range []*netns.Host{s.a, s.b} {
		if s.nodes[i], err = fleet.StartNode(ctx, h, "node-"+h.Name, token); err != nil {
			return err
		}
		up, err := s.nodes[i].Up(wait)
		if err != nil {
			return err
		}
		s.peer = up.Self.Addrs[0]
		if err := keepToUDP(wait, s.nodes[i].Client); err != nil {
			return err
		}
	}
	return s.bothDirect(wait)
}

// keepToUDP has a node make no TCP connections to peers: what is dropped of UDP here is dropped to have a relay measured.
func keepToUDP(ctx context.Context, c *node.Client) error {
	settings, err := c.Settings(ctx)
	if err != nil {
		return err
	}
	settings.TCP = "off"
	return c.SetSettings(ctx, settings)
}

// bothDirect waits until each end sends to the other directly.
func (s *site) bothDirect(ctx context.Context) error {
	if _, err := s.nodes[0].Reaches(ctx, "node-b", weft.Direct); err != nil {
		return err
	}
	_, err := s.nodes[1].Reaches(ctx, "node-a", weft.Direct)
	return err
}

// startIperf starts iperf3 at one host, for another to find.
func (s *site) startIperf(ctx context.Context, at, from *netns.Host, addr netip.Addr) error {
	iperf, err := at.Start(at.Command(ctx, "iperf3", "--server", "--forceflush"))
	if err != nil {
		return fmt.Errorf("iperf3 is needed (apt-get install iperf3): %w", err)
	}
	s.pids = append(s.pids, iperf.PID())
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return netns.WaitFor(wait, "iperf3 to listen", func() error {
		if err := iperf.Err(); err != nil {
			return err
		}
		c, err := from.DialContext(wait, "tcp", net.JoinHostPort(addr.String(), iperfPort))
		if err == nil {
			c.Close()
		}
		return err
	})
}

// rest measures what the machine does while nothing is carried. It waits a while for others to end their work, for
// what they take away cannot be told from what the tunnels cost.
func (s *site) rest(ctx context.Context) error {
	const settle, watch = time.Second, 2 * time.Second
	tries := 3 * s.Tries
	if err := pause(ctx, settle); err != nil {
		return err
	}
	for try := 1; ; try++ {
		before, err := s.meter()
		if err != nil {
			return err
		}
		if err := pause(ctx, watch); err != nil {
			return err
		}
		after, err := s.meter()
		if err != nil {
			return err
		}
		took, busy, others := after.since(before)
		s.idle = busy.Seconds() / took.Seconds()
		if share := others.Seconds() / took.Seconds(); share > disturbance {
			s.idle = max(0, s.idle-share)
			s.say("the machine has other work: %.2f s per s", share)
			if try < tries {
				continue
			}
		}
		s.report.Note("at rest the machine is busy for %.3f s per s", s.idle)
		return nil
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// A subject is one way from a to b.
type subject struct {
	name   string
	target netip.Addr
	method weft.Method // NoMethod: it is not weft's
	out    string      // nftables match of what a's host does not let out meanwhile
	in     string      // and of what it does not let in

	from *netns.Host // nil: a
	node *lab.Node   // whose path has to stay; nil: a's
	peer string      // as that one calls the other end; "": b's node
}

func (s *site) subject(name string) subject {
	if x, ok := s.more[name]; ok {
		return x
	}
	b := s.b.Addr()
	notPlain := fmt.Sprintf(" udp dport != %d", tunnelPort)
	switch name {
	case bare:
		return subject{name: name, target: b}
	case plain:
		return subject{name: name, target: plainInside[1]}
	case udpRelay:
		return subject{name: name, target: s.peer, method: weft.RelayUDP, out: "ip daddr " + b.String() + notPlain, in: "ip saddr " + b.String() + notPlain}
	case streamPath:
		return subject{name: name, target: s.peer, method: weft.RelayStream, out: "meta l4proto udp" + notPlain, in: "meta l4proto udp" + notPlain}
	}
	return subject{name: name, target: s.peer, method: weft.Direct}
}

// ends are the two processes of a tunnel.
func (s *site) ends(name string) [2]end {
	if name == plain {
		return s.plain
	}
	return [2]end{{s.nodes[0].Process, s.nodes[0].Client}, {s.nodes[1].Process, s.nodes[1].Client}}
}

// errMoved is a path that did not stay the one meant: what was measured is not of it.
var errMoved = errors.New("the path changed meanwhile")

// still checks that the path is the one meant.
func (s *site) still(ctx context.Context, x subject) error {
	if x.method == weft.NoMethod {
		return nil
	}
	at, peer, endpoint := s.nodes[0], "node-b", s.b.Addr().String()+":"
	if x.node != nil {
		at, peer, endpoint = x.node, x.peer, ""
	}
	p, err := at.Peer(ctx, peer)
	if err == nil && (p.Method != x.method || p.Method == weft.Direct && !strings.HasPrefix(p.Endpoint, endpoint)) {
		err = fmt.Errorf("%s: %w to %s %s: %s", x.name, errMoved, p.Method, p.Endpoint, p.Reason)
	}
	return err
}

// force makes a's host drop what matches, in both directions, and waits until the path is the one meant. If only what a sends
// were dropped, b, whose data arrives, would keep to its way as long as there is any.
func (s *site) force(ctx context.Context, x subject) error {
	text := "table inet wbench\ndelete table inet wbench\n"
	if x.out != "" {
		text += "table inet wbench {\nchain out {\ntype filter hook output priority 0\n" + x.out + " drop\n}\n" +
			"chain in {\ntype filter hook input priority 0\n" + x.in + " drop\n}\n}\n"
	}
	if err := rules(ctx, s.a, text); err != nil {
		return err
	}
	if x.method == weft.Direct {
		// A way that failed for long is tried again seldom. Who waits for that here is not measured.
		soon, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := s.moved(soon, x)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if err := errors.Join(s.nodes[0].Down(ctx), s.nodes[0].Client.Up(ctx, node.UpRequest{})); err != nil {
			return err
		}
	}
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return s.moved(wait, x)
}

// moved waits until both ends have: each chooses for itself. Traffic makes them look.
func (s *site) moved(ctx context.Context, x subject) error {
	return netns.WaitFor(ctx, "the path to be "+x.method.String(), func() error {
		if _, err := s.nodes[0].Ping(ctx, "node-b", time.Second); err != nil {
			return err
		}
		s.a.Run(ctx, "ping", "-q", "-c", "5", "-i", "0.05", "-W", "1", s.peer.String())
		for i, other := range []string{"node-b", "node-a"} {
			p, err := s.nodes[i].Peer(ctx, other)
			if err != nil {
				return err
			}
			if p.Method != x.method {
				return fmt.Errorf("%s reaches %s by %s: %s", s.nodes[i].Name, other, p.Method, p.Reason)
			}
		}
		return nil
	})
}

// keep writes a file beside the logs, if these are kept.
func (s *site) keep(name string, b []byte) error {
	if s.Logs == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(s.Logs, name), b, 0o644)
}
