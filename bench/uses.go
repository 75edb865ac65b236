package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weft"
	"weft/lab"
	"weft/lab/netns"
	"weft/node"
)

// manyRules is how many lines the longer policy has.
const manyRules = 1000

// wordsAddrs are the addresses of a network of two words, in its range.
var wordsAddrs = [2]netip.Prefix{netip.MustParsePrefix("10.77.0.1/16"), netip.MustParsePrefix("10.77.0.2/16")}

// thin is the rate of the link that is not the fastest that there is: tc-tbf's, with a burst of 2 ms.
var thin = []string{"rate", "1gbit", "burst", "256kb", "latency", "20ms"}

// uses measures what the overlay is used for beside the overlay itself: past many rules, in a network of two words, through a portal.
func (r *overlayRun) uses(ctx context.Context) (err error) {
	l, err := r.lab(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	s, err := r.site(ctx, l, false)
	if err != nil {
		return err
	}
	defer s.disturbances()
	s.more = make(map[string]subject)
	if r.wants("rules") {
		if err := s.rules(ctx, l); err != nil {
			return err
		}
	}
	if r.wants("words") {
		if err := s.words(ctx, l); err != nil {
			return err
		}
	}
	if r.wants("portal") {
		return s.portal(ctx, l)
	}
	return nil
}

// measured is what rounds measures: one stream, under names of its own.
func (s *site) measured(rate, cpu string) func(context.Context, subject, int) error {
	return func(ctx context.Context, x subject, round int) error { return s.streamed(ctx, x, round, 1, rate, cpu) }
}

// rules sets one of two policies before each run. What is measured is let in by the last line of the longer one.
func (s *site) rules(ctx context.Context, l *netns.Lab) error {
	long := &strings.Builder{}
	for i := range manyRules - 1 {
		fmt.Fprintf(long, `{"action": "accept", "src": ["10.%d.%d.0/24"], "dst": ["*:%d"]},`, i/250, i%250, 10000+i)
	}
	all := `{"action": "accept", "src": ["*"], "dst": ["*:*"]}`
	files := map[string]string{}
	for name, lines := range map[string]string{direct: all, ruled: long.String() + all} {
		files[name] = filepath.Join(l.Dir(), fmt.Sprintf("policy-%d", len(files)))
		if err := os.WriteFile(files[name], []byte(`{"acls": [`+lines+`]}`), 0o600); err != nil {
			return err
		}
	}
	x := s.subject(direct)
	x.name = ruled
	s.more[ruled] = x
	stream := s.measured(ruledRate, ruledCPU)
	return s.rounds(ctx, s.Rounds, []string{direct, ruled}, func(ctx context.Context, x subject, round int) error {
		if _, err := s.server.Admin(ctx, "policy", "set", files[x.name]); err != nil {
			return err
		}
		if err := pause(ctx, time.Second); err != nil { // nodes are told within that, and the machine is at rest
			return err
		}
		return stream(ctx, x, round)
	})
}

// words has two more hosts meet by two words.
func (s *site) words(ctx context.Context, l *netns.Lab) error {
	hosts, err := s.hosts(l, "meet", "word-a", "word-b")
	if err != nil {
		return err
	}
	fleet := lab.Fleet{Binary: s.Binary, Dir: l.Dir()}
	meet, err := hosts[0].Start(hosts[0].Command(ctx, s.Binary, "server", "--rendezvous-only", "--data", filepath.Join(l.Dir(), "meet")))
	if err != nil {
		return err
	}
	s.pids = append(s.pids, meet.PID())
	file := filepath.Join(l.Dir(), "words")
	if err := os.WriteFile(file, []byte("bench:only-of-this-run\n"), 0o600); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var nodes [2]*lab.Node
	for i, h := range hosts[1:] {
		if nodes[i], err = fleet.StartNode(ctx, h, h.Name, "", "--secret", file, "--rendezvous", hosts[0].Addr().String(), "--address", wordsAddrs[i].String()); err != nil {
			return err
		}
		if _, err := nodes[i].Up(wait); err != nil {
			return err
		}
		s.pids = append(s.pids, nodes[i].Process.PID())
	}
	for i, n := range nodes {
		if _, err := n.Reaches(wait, nodes[1-i].Name, weft.Direct); err != nil {
			return err
		}
	}
	if err := s.startIperf(ctx, hosts[2], hosts[1], wordsAddrs[1].Addr()); err != nil {
		return err
	}
	s.more[words] = subject{name: words, target: wordsAddrs[1].Addr(), method: weft.Direct, from: hosts[1], node: nodes[0], peer: nodes[1].Name}
	if err := s.rounds(ctx, s.Rounds, []string{direct, words}, s.measured(wordsRate, wordsCPU)); err != nil {
		return err
	}
	for _, h := range []*netns.Host{s.a, hosts[1]} {
		if _, err := h.Run(ctx, "tc", append([]string{"qdisc", "replace", "dev", "eth0", "root", "tbf"}, thin...)...); err != nil {
			return err
		}
	}
	err = s.rounds(ctx, s.Rounds, []string{bare, words}, s.measured(thinRate, thinCPU))
	for _, h := range []*netns.Host{s.a, hosts[1]} {
		_, failed := h.Run(ctx, "tc", "qdisc", "del", "dev", "eth0", "root")
		err = errors.Join(err, failed)
	}
	return err
}

// portal gives b's address to a client behind a. A stranger is who the client talks to.
func (s *site) portal(ctx context.Context, l *netns.Lab) error {
	hosts, err := s.hosts(l, "client", "stranger")
	if err != nil {
		return err
	}
	client, stranger := hosts[0], hosts[1]
	if _, err := s.nodes[1].Portal(ctx, node.PortalRequest{Role: node.PortalRemote, Peer: "node-a"}); err != nil {
		return err
	}
	if err := errors.Join(
		ipBatch(ctx, s.a, "link add lan0 type veth peer name lan0 netns "+client.Namespace(), "link set lan0 up"),
		ipBatch(ctx, client, "link set eth0 down", "link set lan0 up")); err != nil {
		return err
	}
	st, err := s.nodes[0].Portal(ctx, node.PortalRequest{Role: node.PortalLocal, Peer: "node-b", Interface: "lan0"})
	if err != nil {
		return err
	}
	if err := ipBatch(ctx, client, "addr add "+st.Addrs[0].String()+" dev lan0", "route add default via "+st.Gateways[0].String()+" dev lan0"); err != nil {
		return err
	}
	if err := s.startIperf(ctx, client, stranger, s.b.Addr()); err != nil {
		return err
	}
	if err := s.startIperf(ctx, stranger, client, stranger.Addr()); err != nil {
		return err
	}
	s.more[portalOut] = subject{name: portalOut, target: stranger.Addr(), method: weft.Direct, from: client}
	s.more[portalIn] = subject{name: portalIn, target: s.b.Addr(), method: weft.Direct, from: stranger}
	return s.rounds(ctx, s.Rounds, []string{direct, portalOut, portalIn}, s.measured(portalRate, portalCPU))
}
