package real

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"weft"
	"weft/lab/netns"
	"weft/lab/scenario"
)

const (
	// probeEvery is how often a probe's command is run, from one end to the next beginning.
	probeEvery = 250 * time.Millisecond
	// probeLimit is how long it may take; one that takes longer has said nothing.
	probeLimit = 10 * time.Second
)

// start starts what runs from the beginning, and returns when time zero has come: all nodes are up and know each other.
func (w *world) start() error {
	ctx, cancel := context.WithTimeoutCause(w.ctx, readyWithin, fmt.Errorf("nothing more happened for %v", readyWithin))
	defer cancel()
	// Programs live as long as the run, so what waits for them does too; the limit ends both.
	defer context.AfterFunc(ctx, func() { w.cancel(context.Cause(ctx)) })()
	for _, m := range w.order {
		if m.Role == scenario.Server {
			if err := w.startMachine(ctx, m); err != nil {
				return err
			}
		}
	}
	group, inGroup := errgroup.WithContext(ctx)
	for _, m := range w.order {
		if m.Role != scenario.Server && m.Start == 0 {
			group.Go(func() error { return w.startMachine(inGroup, m) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	w.listPairs()
	err := netns.WaitFor(ctx, "the nodes to know each other", func() error { return w.acquainted(ctx) })
	if err != nil {
		return err
	}
	if err := w.obey(ctx); err != nil {
		return err
	}
	if err := w.prepareReaches(); err != nil {
		return err
	}
	w.began = time.Now()
	w.say("all that starts at once is up")
	return nil
}

// startMachine starts what runs on a machine, and waits for as long as others depend on it.
func (w *world) startMachine(ctx context.Context, m *machine) (err error) {
	m.running = true
	switch m.Role {
	case scenario.Server:
		err = w.startServer(ctx, m)
	case scenario.Relay:
		err = w.startRelay(ctx, m)
	case scenario.Node:
		err = w.startNode(ctx, m)
	}
	for _, command := range m.Run {
		if err != nil {
			return err
		}
		var p *netns.Process
		cmd := m.host.Command(w.ctx, "/bin/sh", "-c", command)
		if cmd.Env, err = w.environment(cmd.Environ(), m, ""); err == nil {
			if p, err = m.host.Start(cmd); err == nil {
				m.others, m.logs = append(m.others, p), append(m.logs, p)
			}
		}
	}
	return err
}

func (w *world) startServer(ctx context.Context, m *machine) (err error) {
	if m.Rendezvous {
		return w.startRendezvous(ctx, m)
	}
	if w.server == nil {
		w.server, err = w.fleet.StartServer(w.ctx, m.host)
		if err == nil {
			m.logs = append(m.logs, w.server.Process)
			err = w.govern(ctx)
		}
		return err
	}
	err = w.server.Start(w.ctx)
	m.logs = append(m.logs, w.server.Process)
	return err
}

func (w *world) startRelay(ctx context.Context, m *machine) error {
	cmd := m.host.Command(w.ctx, w.fleet.Binary, "relay", "--data", filepath.Join(w.lab.Dir(), m.Name), "--listen", ":443", "--stun", ":3478",
		"--url", "https://"+m.host.Addr().String(), "--name", m.Name)
	if m.relay == nil { // the first time
		token, err := w.server.Token(ctx, "--relay")
		if err != nil {
			return err
		}
		cmd.Env = append(cmd.Environ(), "WEFT_TOKEN="+token)
	}
	p, err := m.host.Start(cmd)
	if err == nil {
		m.relay, m.logs = p, append(m.logs, p)
	}
	return err
}

func (w *world) startNode(ctx context.Context, m *machine) (err error) {
	if m.node == nil {
		var token string
		var flags []string
		if token, flags, err = w.member(ctx, m); err != nil {
			return err
		}
		m.node, err = w.fleet.StartNode(w.ctx, m.host, m.Name, token, append(flags, w.links(m)...)...)
	} else {
		err = m.node.Start(w.ctx, "", w.links(m)...) // it has joined
	}
	if err == nil {
		m.logs = append(m.logs, m.node.Process)
	}
	return err
}

// stopMachine ends what runs on a machine as switching it off does.
func (w *world) stopMachine(m *machine) (err error) {
	m.running = false
	list := m.others
	switch {
	case m.Role == scenario.Server && !m.Rendezvous:
		list = append(list, w.server.Process)
	case m.relay != nil:
		list = append(list, m.relay)
	case m.node != nil:
		list = append(list, m.node.Process)
	}
	m.others = nil
	for _, p := range list {
		err = errors.Join(err, p.Kill())
	}
	return err
}

// environment is what a command finds, beside what the lab's own hosts have.
func (w *world) environment(base []string, m *machine, peer string) ([]string, error) {
	dir := filepath.Join(w.lab.Dir(), "of-"+m.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	addrs, gateways, public := map[string]netip.Addr{}, map[string]netip.Addr{}, map[string]netip.Addr{}
	for _, m := range w.order {
		addrs[m.Name], gateways[m.Name] = m.host.Addr(), w.network(m.On).Gateway()
	}
	for _, r := range w.Routers {
		if r.NAT.Mapping != weft.NoNAT {
			public[r.Name] = w.routers[r.Name].Addr()
		}
	}
	return append(base, scenario.Environment(m.Name, peer, dir, addrs, gateways, public)...), nil
}

// acquainted says which node is not up yet, or does not know whom.
func (w *world) acquainted(ctx context.Context) error {
	var nodes []*machine
	for _, m := range w.order {
		if m.Start > 0 {
			continue
		}
		for _, p := range m.logs {
			ends := m.Role == scenario.Plain || slices.Contains(m.others, p) // what only sets something up may end
			if err := p.Err(); err != nil && (!ends || p.Failed() || m.Rendezvous) {
				return fatal(w, err)
			}
		}
		if m.node != nil {
			nodes = append(nodes, m)
		}
	}
	for _, m := range nodes {
		s, err := m.node.Status(ctx)
		if err != nil {
			return err
		}
		if s.State != weft.Running {
			return fmt.Errorf("%s is %s", m.Name, s.State)
		}
		online := 0
		for _, p := range s.Peers {
			if p.Online {
				online++
			}
		}
		others := -1
		for _, o := range nodes {
			if o.Member.Secret == m.Member.Secret {
				others++
			}
		}
		if online < others {
			return fmt.Errorf("%s knows of %d nodes that are up, not of %d", m.Name, online, others)
		}
		m.learn(s)
	}
	return nil
}

// learn keeps a node's overlay addresses.
func (m *machine) learn(s weft.Status) {
	var addrs [2]netip.Addr
	for _, a := range s.Self.Addrs {
		if a.Is4() {
			addrs[0] = a
		} else {
			addrs[1] = a
		}
	}
	m.overlay.Store(&addrs)
}

// fatal ends the run: what a program that has ended waits for never comes.
func fatal(w *world, err error) error {
	w.cancel(err)
	return err
}

// probe runs a probe's command again and again, and notes what it says.
func (w *world) probe(x scenario.Probe, saw func(weft.PathKind)) {
	a := w.hosts[x.A]
	for {
		ctx, cancel := context.WithTimeout(w.ctx, probeLimit)
		cmd := a.host.Command(ctx, "/bin/sh", "-c", x.Command)
		path := weft.PathNone
		if env, err := w.environment(cmd.Environ(), a, x.B); err == nil {
			cmd.Env = env
			if out, err := cmd.Output(); err == nil {
				if said, ok := scenario.ProbeAnswer(string(out)); ok {
					path = said
				}
			}
		}
		cancel()
		select {
		case <-w.ctx.Done():
			return
		case <-time.After(probeEvery):
			saw(path)
		}
	}
}
