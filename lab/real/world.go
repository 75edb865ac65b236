package real

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/lab"
	"weft/lab/netns"
	"weft/lab/scenario"
)

// A world is one run: the scenario laid out, and what runs in it.
type world struct {
	scenario.Scenario
	options scenario.Options
	ctx     context.Context
	cancel  context.CancelCauseFunc
	lab     *netns.Lab
	fleet   lab.Fleet
	logs    string // directory that programs log to, if it is kept

	routers map[string]*netns.Router
	lans    map[string]*netns.Network
	hosts   map[string]*machine
	order   []*machine
	servers map[netip.Addr]bool // addresses of servers and relays
	server  *lab.Server
	tokens  map[string]string // by what they make of a node
	joining sync.Mutex        // of tokens
	orders  chan scenario.Command

	began   time.Time // time zero; zero before it
	history scenario.History
	pairs   []*pair
	flows   []*flow
	reaches []*reach
	probes  sync.WaitGroup // and all else that ends with the run
	trace   trace
}

// A machine is a host, and what runs on it.
type machine struct {
	scenario.Host
	host    *netns.Host
	legs    []*netns.Leg // its links, beside the first
	node    *lab.Node
	relay   *netns.Process
	running bool
	others  []*netns.Process
	logs    []*netns.Process              // all that ever ran, for their logs
	overlay atomic.Pointer[[2]netip.Addr] // of a node, once it is up: by IPv4 and by IPv6
}

// newWorld lays out routers and hosts, each behind the one that it is on.
func newWorld(ctx context.Context, s scenario.Scenario, o scenario.Options) (w *world, err error) {
	w = &world{Scenario: s, options: o, routers: map[string]*netns.Router{}, lans: map[string]*netns.Network{}, hosts: map[string]*machine{},
		servers: map[netip.Addr]bool{}, tokens: map[string]string{}}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	var keep []netns.Option
	if o.Dir != "" {
		if w.logs, err = os.MkdirTemp(o.Dir, fileName(s.Name)+"-"); err != nil {
			return nil, fmt.Errorf("making a directory for logs: %w", err)
		}
		keep = append(keep, netns.KeepLogs(w.logs))
	}
	// The lab outlives ctx until close: programs are looked at once more when a run is over.
	if w.lab, err = netns.New(context.WithoutCancel(ctx), labPrefix, keep...); err != nil {
		return nil, err
	}
	w.fleet = lab.Fleet{Binary: o.Binary, Dir: w.lab.Dir()}
	if err = w.layOut(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *world) layOut() (err error) {
	for _, l := range w.Lans {
		if w.lans[l.Name], err = w.lab.AddLAN(l.Name, l.Prefixes[0], l.Prefix6()); err != nil {
			return err
		}
	}
	for _, r := range w.Routers {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if err := w.addRouter(r); err != nil {
			return err
		}
	}
	for _, h := range w.Hosts {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		host, err := w.network(h.On).AddHost(h.Name, w.hostOptions(h)...)
		if err != nil {
			return err
		}
		m := &machine{Host: h, host: host}
		if err := w.addLegs(m); err != nil {
			return err
		}
		w.hosts[h.Name] = m
		w.order = append(w.order, m)
		if h.Role == scenario.Server || h.Role == scenario.Relay {
			w.servers[host.Addr()] = true
		}
	}
	return w.followPackets()
}

// network is a router's inside, a lan, or the internet.
func (w *world) network(name string) *netns.Network {
	if n := w.lans[name]; n != nil {
		return n
	}
	if r := w.routers[name]; r != nil {
		return r.Inside()
	}
	return w.lab.Public()
}

func (w *world) addRouter(r scenario.Router) (err error) {
	var options []netns.HostOption
	if r.IPv6 {
		options = append(options, netns.WithIPv6())
	}
	if r.Kernel != "" {
		if w.impaired(r.Name) || r.Link != (scenario.Link{}) {
			options = append(options, netns.WithLinks(r.Link.Out, r.Link.In))
		}
		w.routers[r.Name], err = w.network(r.On).AddRouter(r.Name, kernels[r.Kernel], options...)
		return err
	}
	options = append(options, netns.WithLinks(r.Link.Out, r.Link.In), netns.WithPool(max(r.PoolSize, 1)))
	if len(r.NAT.Public) > 0 {
		options = append(options, netns.WithAddrs(r.NAT.Public...))
	}
	if r.On == scenario.Internet {
		options = append(options, netns.WithHops(hops))
	}
	nat := r.NAT
	nat.Public, nat.Seed = nil, nat.Seed^w.options.Seed
	w.routers[r.Name], err = w.network(r.On).AddNATRouter(r.Name, nat, options...)
	return err
}

func (w *world) hostOptions(h scenario.Host) (options []netns.HostOption) {
	if (h.IPv6 || w.lans[h.On] != nil) && w.network(h.On).Prefix6().IsValid() {
		options = append(options, netns.WithIPv6())
	}
	if h.Link != (scenario.Link{}) || len(h.Places) > 1 || w.impaired(h.Name) {
		options = append(options, netns.WithLinks(h.Link.Out, h.Link.In))
	}
	return options
}

// secondMetric is that of the default route by a host's second link, as the system has it; the third has one more. The
// first link's has none, and so comes first.
const secondMetric = 200

// addLegs gives a host its links beside the first: eth1 and so on.
func (w *world) addLegs(m *machine) error {
	for i, g := range m.Legs()[1:] {
		on := w.network(g.On)
		lan := w.Lan(g.On)
		var options []netns.HostOption
		switch {
		case lan == nil:
			options = append(options, netns.WithLine(m.Link.Out, m.Link.In), netns.WithDefaultRoute(secondMetric+i))
		case w.Gateway(lan).Name == m.Name:
			options = append(options, netns.AsGateway())
		}
		if (m.IPv6 || lan != nil) && on.Prefix6().IsValid() {
			options = append(options, netns.WithIPv6())
		}
		leg, err := m.host.AddLeg(on, options...)
		if err != nil {
			return err
		}
		m.legs = append(m.legs, leg)
	}
	return nil
}

// links are what weft is told of a machine's links: nothing, unless the scenario says which come first.
func (w *world) links(m *machine) (flags []string) {
	if !m.Metrics() {
		return nil
	}
	for i, g := range m.Legs() {
		if g.Metric == 0 && w.lans[g.On] != nil {
			continue
		}
		flags = append(flags, "--link", fmt.Sprintf("eth%d:%d", i, g.Metric))
	}
	return flags
}

// impaired reports whether the story changes a link, or cuts it, or somebody counts what it carries.
func (w *world) impaired(name string) bool {
	if slices.ContainsFunc(w.Expect, func(e scenario.Expectation) bool { return e.Idle && e.A == name }) {
		return true
	}
	return slices.ContainsFunc(w.Events, func(e scenario.Event) bool {
		return (e.Verb == scenario.Set || e.Verb == scenario.Cut) && e.Args[0] == name ||
			e.Verb == scenario.Set && strings.HasPrefix(e.Args[0], name+".")
	})
}

// close ends everything, at once: whoever runs here has nobody to say goodbye to.
func (w *world) close() error {
	w.cancel(nil)
	var wait sync.WaitGroup
	for _, m := range w.order {
		for _, p := range m.logs {
			wait.Go(func() { p.Kill() })
		}
	}
	w.probes.Wait()
	wait.Wait()
	for _, f := range w.flows {
		f.wait()
	}
	err := w.lab.Close()
	if w.logs != "" {
		os.Remove(w.logs) // where nothing was logged
	}
	return err
}

// result is what there is to tell so far.
func (w *world) result() scenario.Result {
	r := scenario.Result{Scenario: w.Name, Backend: Backend{}.Name(), Seed: w.options.Seed, OK: true,
		Flows: w.history.Results(), Trace: w.trace.since(w.began), Logs: map[string]string{}, Elapsed: w.history.End}
	r.Outcomes, _ = w.history.Judge(w.Scenario, true)
	for _, o := range r.Outcomes {
		r.OK = r.OK && o.OK
	}
	for _, p := range w.pairs {
		r.Pairs = append(r.Pairs, p.result)
	}
	for _, m := range w.order {
		var text strings.Builder
		for _, p := range m.logs {
			log := p.Log()
			fmt.Fprintf(&text, "--- %s\n%s\n", p.Name, log[max(0, len(log)-logKept):])
		}
		if text.Len() > 0 {
			r.Logs[m.Name] = text.String()
		}
	}
	return r
}

// say tells whoever listens how far the run is.
func (w *world) say(format string, args ...any) {
	if w.options.Log != nil {
		w.options.Log(fmt.Sprintf(format, args...))
	}
}

// now is the scenario's time.
func (w *world) now() time.Duration { return time.Since(w.began) }

// kind is a path's, of what weft says of a method and where it leads.
func kind(way string) weft.PathKind {
	word, _, _ := strings.Cut(way, " ")
	var m weft.Method
	if m.UnmarshalText([]byte(word)) != nil {
		return weft.PathNone
	}
	return m.Kind()
}

// fileName makes a name that any file may have.
func fileName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '_'
	}, filepath.Base(s))
	return s[:min(len(s), 64)]
}
