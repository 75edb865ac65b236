package portmap

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/lab/netns"
)

// The tests of this file hold the clients against miniupnpd, in network namespaces: a node behind a symmetric NAT
// of the kernel, a router that maps ports, and a host outside.

const (
	helperEnv = "WEFT_PORTMAP_TEST_HELPER"
	nodePort  = 41641
	patience  = 40 * time.Second
)

// outside is an address that miniupnpd takes for public. It is nobody's within the namespaces.
var outside = netip.MustParseAddr("9.0.0.9")

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		helper()
		return
	}
	flag.Parse()
	flag.Set("test.parallel", "6") // they wait for routers more than they work
	os.Exit(m.Run())
}

// wish is what the helper is told.
type wish struct {
	Ways     []Protocol
	Lifetime time.Duration
	Check    time.Duration
}

// helper is a node: a UDP socket that answers what comes with where it came from, and a client of this package,
// whose states it prints. It runs until it is ended.
func helper() {
	var w wish
	if err := json.Unmarshal([]byte(os.Getenv(helperEnv)), &w); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{Port: nodePort})
	if err != nil {
		panic(err)
	}
	go func() {
		buf := make([]byte, 2048)
		for {
			_, from, err := socket.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			socket.WriteToUDPAddrPort([]byte(from.String()), from)
		}
	}()
	out := json.NewEncoder(os.Stdout)
	c := New(Config{
		Port: nodePort, Changed: func(s []State) { out.Encode(s) },
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	c.ways = waysOf(w.Ways)
	c.timing.first, c.timing.check, c.timing.least, c.timing.gap = 200*time.Millisecond, 500*time.Millisecond, time.Second, 50*time.Millisecond
	if w.Lifetime != 0 {
		c.timing.lifetime = w.Lifetime
	}
	if w.Check != 0 {
		c.timing.check = w.Check
	}
	c.Run(ctx)
}

func waysOf(protocols []Protocol) (ways []way) {
	for i, p := range []Protocol{PCP, NATPMP, UPnP} {
		if len(protocols) == 0 || slices.Contains(protocols, p) {
			ways = append(ways, allWays[i])
		}
	}
	return ways
}

// home is a network in namespaces.
type home struct {
	t      *testing.T
	ctx    context.Context
	router *netns.Router
	node   *netns.Host
	out    *netns.Host
	daemon *netns.Process

	started time.Time // the daemon
}

func newHome(t *testing.T, m netns.PortMapping) *home {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skipf("network namespaces cannot be used here: %v", err)
	}
	if _, err := exec.LookPath("miniupnpd"); err != nil {
		t.Skip("miniupnpd is not installed: scripts/install-deps test")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	l, err := netns.New(ctx, "portmap")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	h := &home{t: t, ctx: ctx}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	h.router, err = l.AddRouter("home", netns.Symmetric)
	must(err)
	h.node, err = h.router.AddHost("node")
	must(err)
	h.out, err = l.AddHost("out")
	must(err)
	m.External = outside
	h.start(m)
	return h
}

// start starts miniupnpd, with nothing mapped.
func (h *home) start(m netns.PortMapping) {
	h.t.Helper()
	m.External = outside
	if h.daemon != nil {
		if err := h.daemon.Kill(); err != nil {
			h.t.Fatal(err)
		}
		// The rules of one that was killed stand until the next one has got as far as clearing them.
		if _, err := h.router.Run(h.ctx, "nft", "flush", "chain", "inet", "miniupnpd", "prerouting_miniupnpd"); err != nil {
			h.t.Fatal(err)
		}
	}
	var err error
	if h.daemon, err = h.router.MapPorts(h.ctx, m); err != nil {
		h.t.Fatal(err)
	}
	h.started = time.Now()
	h.wait("miniupnpd", func() error {
		log := h.daemon.Log()
		if m.NATPMP && !strings.Contains(log, "Listening for NAT-PMP/PCP traffic") || m.UPnP && !strings.Contains(log, "HTTP listening on port") {
			return errors.New("it does not listen yet")
		}
		return nil
	})
}

// aged reports whether the router runs for so long that its epoch tells a restart.
func (h *home) aged() error {
	if time.Since(h.started) < 5*time.Second {
		return errors.New("the router has just been started")
	}
	return nil
}

// client is a helper that runs.
type client struct {
	h      *home
	cmd    *exec.Cmd
	states chan State
	log    *strings.Builder
}

func (h *home) client(w wish) *client {
	h.t.Helper()
	text, _ := json.Marshal(w)
	cmd := h.node.Command(h.ctx, os.Args[0])
	cmd.Env = append(cmd.Env, helperEnv+"="+string(text))
	c := &client{h: h, cmd: cmd, states: make(chan State, 100), log: &strings.Builder{}}
	cmd.Stderr = c.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		defer close(c.states)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var s []State
			if json.Unmarshal(lines.Bytes(), &s) == nil && len(s) == 1 {
				c.states <- s[0]
			}
		}
		io.Copy(io.Discard, out)
	}()
	h.t.Cleanup(func() {
		c.end()
		if h.t.Failed() {
			h.t.Logf("node: %s\nrouter: %s", c.log, h.daemon.Log())
		}
	})
	return c
}

// end tells the node to end, and waits.
func (c *client) end() {
	if c.cmd.ProcessState == nil {
		c.cmd.Process.Signal(syscall.SIGTERM)
		for range c.states {
		}
		c.cmd.Wait()
	}
}

// until waits for a state.
func (c *client) until(what string, ok func(State) bool) State {
	c.h.t.Helper()
	for {
		select {
		case s, open := <-c.states:
			if !open {
				c.h.t.Fatalf("the node ended before %s", what)
			}
			if ok(s) {
				return s
			}
		case <-c.h.ctx.Done():
			c.h.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func (c *client) mapped() State {
	c.h.t.Helper()
	return c.until("a mapping", func(s State) bool { return s.Mapping.External.IsValid() })
}

// reaches reports whether a datagram of a stranger outside arrives at the node, and is answered from there.
func (h *home) reaches(at netip.AddrPort) error {
	conn, err := h.out.ListenUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.WriteToUDPAddrPort([]byte("hello"), at); err != nil {
		return err
	}
	buf := make([]byte, 100)
	conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	n, from, err := conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		return err
	}
	if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); from != at || !strings.HasPrefix(string(buf[:n]), h.out.Addr().String()) {
		return fmt.Errorf("%s answers %q", from, buf[:n])
	}
	return nil
}

func (h *home) wait(what string, cond func() error) {
	h.t.Helper()
	if err := netns.WaitFor(h.ctx, what, cond); err != nil {
		h.t.Fatal(err)
	}
}

var errReached = errors.New("it is still reached")

// TestAStrangerReachesANodeWhoseRouterMapsPorts is the whole life of a mapping, by each protocol.
func TestAStrangerReachesANodeWhoseRouterMapsPorts(t *testing.T) {
	t.Parallel()
	all := netns.PortMapping{UPnP: true, NATPMP: true}
	for _, c := range []struct {
		name   string
		router netns.PortMapping
		ways   []Protocol
		want   Protocol
	}{
		{"PCP is taken where all is offered", all, nil, PCP},
		{"NAT-PMP", all, []Protocol{NATPMP}, NATPMP},
		{"UPnP v2", all, []Protocol{UPnP}, UPnP},
		{"UPnP v1 is taken where nothing else is offered", netns.PortMapping{UPnP: true, ForceV1: true}, nil, UPnP},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t, c.router)
			n := h.client(wish{Ways: c.ways})
			s := n.mapped()
			want := Mapping{
				Protocol: c.want, Internal: netip.AddrPortFrom(h.node.Addr(), nodePort), External: netip.AddrPortFrom(outside, nodePort),
			}
			if s.Mapping != want || s.Gateway != h.router.Inside().Gateway() || s.Problem != "" {
				t.Errorf("%+v, want %+v", s, want)
			}
			if err := h.reaches(s.Mapping.External); err != nil {
				t.Errorf("a stranger does not reach the node: %v", err)
			}

			// The router forgets all, as one that is switched off and on. Its epoch says so if it has run for
			// longer than clocks may differ.
			h.wait("an epoch that can be told from a new one", h.aged)
			h.start(c.router)
			h.wait("the mapping after the router's restart", func() error { return h.reaches(want.External) })

			// The node ends, and takes its mapping with it.
			n.end()
			h.wait("the end of the mapping", func() error {
				if h.reaches(want.External) == nil {
					return errReached
				}
				rules, err := h.router.Run(h.ctx, "nft", "list", "chain", "inet", "miniupnpd", "prerouting_miniupnpd")
				if err == nil && strings.Contains(rules, "dnat") {
					return fmt.Errorf("the rule stands: %s", rules)
				}
				return err
			})
		})
	}
}

// A router that was restarted says so to everybody, and the mapping is made anew at once: the next look would be an
// hour away.
func TestARestartThatIsAnnouncedIsFeltAtOnce(t *testing.T) {
	t.Parallel()
	m := netns.PortMapping{UPnP: true, NATPMP: true}
	for _, p := range []Protocol{PCP, NATPMP} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			h := newHome(t, m)
			n := h.client(wish{Ways: []Protocol{p}, Check: time.Hour})
			at := n.mapped().Mapping.External
			h.wait("an epoch that can be told from a new one", h.aged)
			h.start(m)
			h.wait("the mapping after the router's restart", func() error { return h.reaches(at) })
		})
	}
}

func TestAMappingIsRenewedForAsLongAsTheNodeRuns(t *testing.T) {
	t.Parallel()
	for _, p := range []Protocol{PCP, NATPMP, UPnP} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			h := newHome(t, netns.PortMapping{UPnP: true, NATPMP: true})
			n := h.client(wish{Ways: []Protocol{p}, Lifetime: 2 * time.Second})
			at := n.mapped().Mapping.External
			// miniupnpd takes away what has ended; four lives later it must be there.
			for began := time.Now(); time.Since(began) < 8*time.Second; {
				h.wait("a stranger's datagram", func() error { return h.reaches(at) })
				select {
				case s := <-n.states:
					t.Fatalf("the state changed: %+v", s)
				case <-time.After(time.Second):
				}
			}
		})
	}
}

func TestAPortThatAnotherMachineHasIsLeftToIt(t *testing.T) {
	t.Parallel()
	for _, p := range []Protocol{PCP, NATPMP, UPnP} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			h := newHome(t, netns.PortMapping{UPnP: true, NATPMP: true})
			first := h.client(wish{})
			if at := first.mapped().Mapping.External; at.Port() != nodePort {
				t.Fatalf("the first has %s", at)
			}
			other, err := h.router.AddHost("second")
			if err != nil {
				t.Fatal(err)
			}
			h.node = other
			second := h.client(wish{Ways: []Protocol{p}})
			at := second.mapped().Mapping.External
			if at.Port() == nodePort {
				t.Errorf("both machines have %s", at)
			}
			h.wait("a stranger's datagram to the second", func() error { return h.reaches(at) })
			h.wait("a stranger's datagram to the first", func() error { return h.reaches(netip.AddrPortFrom(outside, nodePort)) })
			second.end()
			if err := h.reaches(netip.AddrPortFrom(outside, nodePort)); err != nil {
				t.Errorf("the second took the first's mapping away: %v", err)
			}
		})
	}
}

// A node that ends without a word leaves its mapping behind. The next one on this machine is not kept from it.
func TestANodeThatWasKilledGetsItsPortAgain(t *testing.T) {
	t.Parallel()
	for _, p := range []Protocol{"", PCP, NATPMP, UPnP} {
		t.Run("by "+cmp.Or(string(p), "whatever there is"), func(t *testing.T) {
			t.Parallel()
			h := newHome(t, netns.PortMapping{UPnP: true, NATPMP: true})
			w := wish{}
			if p != "" {
				w.Ways = []Protocol{p}
			}
			first := h.client(w)
			first.mapped()
			first.cmd.Process.Kill()
			for range first.states {
			}
			first.cmd.Wait()
			at := h.client(w).mapped().Mapping.External
			if at.Port() != nodePort {
				t.Errorf("it has %s now", at)
			}
			h.wait("a stranger's datagram", func() error { return h.reaches(at) })
		})
	}
}

func TestARouterThatOffersNothingIsToldSo(t *testing.T) {
	t.Parallel()
	h := newHome(t, netns.PortMapping{UPnP: true, NATPMP: true})
	if err := h.daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	n := h.client(wish{})
	s := n.until("a problem", func(s State) bool { return s.Problem != "" })
	if s.Problem != errNone.Error() || s.Mapping != (Mapping{}) {
		t.Errorf("%+v", s)
	}
	// And when it is switched on, it is found.
	h.start(netns.PortMapping{UPnP: true, NATPMP: true})
	at := n.mapped().Mapping.External
	h.wait("a stranger's datagram", func() error { return h.reaches(at) })
}
