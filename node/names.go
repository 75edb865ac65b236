package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/dns"
	"weft/host"
)

const (
	// wireTimeout bounds telling the system's resolver of ours; systemd-resolved answers in milliseconds.
	wireTimeout = 10 * time.Second
	// rewireAfter is how soon it is tried again where that failed, or another network of this machine is in the way.
	rewireAfter = 10 * time.Second
	// lookAfter is how soon it is looked whether resolv.conf still sends questions here, where no one else keeps that: a program that
	// writes the file anew tells nobody. It costs reading three small files.
	lookAfter = 10 * time.Second
	// othersFor is how long it is remembered which other networks this machine has.
	othersFor = time.Second
	// maxDomains is how many domains the system is told of, 256 being the most that systemd-resolved takes
	// (LINK_SEARCH_DOMAINS_MAX). What is cut are reverse names of addresses that an administrator wrote down.
	maxDomains = 250
)

// names resolves the overlay's names on this machine, and whatever else the network's administrator says: a server on the
// service address, and the system's resolver told of it. An exit node has another server, on its own addresses, for
// members who leave the overlay there. set, start and how may be called from different goroutines; close once, last.
type names struct {
	cfg meshConfig
	log *slog.Logger

	mu       sync.Mutex
	server   *dns.Server // nil before the first map
	members  *dns.Server // of an exit node, else nil
	zone     *dns.Zone
	netmap   weft.NetworkMap
	plan     host.ResolverConfig // what the system is to be told
	resolver *host.Resolver
	problem  string
	started  bool

	ctx     context.Context
	cancel  context.CancelFunc
	wiring  sync.WaitGroup
	kick    chan struct{}                  // the wiring is to be looked at
	settled chan struct{}                  // closed when the system was told, or could not be
	guests  atomic.Pointer[[]netip.Prefix] // who may ask besides this machine: plain WireGuard peers, who have no resolver
	others  atomic.Pointer[others]
}

// others are the other networks of this machine: each answers for its own names.
type others struct {
	at      time.Time
	servers []netip.Addr
	split   dns.Split
}

func newNames(cfg meshConfig) *names {
	ctx, cancel := context.WithCancel(context.Background())
	return &names{cfg: cfg, log: cfg.Logger, ctx: ctx, cancel: cancel, kick: make(chan struct{}, 1), settled: make(chan struct{})}
}

// set takes the names of a map.
func (n *names) set(m weft.NetworkMap) {
	records := []dns.Record{{Name: m.Self.Name, Addrs: m.Self.Addrs}}
	for _, r := range m.DNS.Records {
		records = append(records, dns.Record{Name: r.Name, Addrs: r.Addrs, Written: true})
	}
	for _, p := range m.Peers {
		records = append(records, dns.Record{Name: p.Name, Addrs: p.Addrs})
	}
	zone, err := dns.NewZone(m.Domain, records, m.Ranges...)
	if err != nil {
		n.log.Warn("the map's names cannot be resolved", "error", err)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.zone, n.netmap = zone, m
	split := dns.NewSplit(m.DNS.Split)
	for _, s := range []*dns.Server{n.server, n.members} {
		if s != nil {
			s.Replace(zone, split)
		}
	}
	former := n.plan
	if n.plan = n.wish(zone, split); !sameWiring(n.plan, former) || leadsOut(m.Self) != (n.members != nil) {
		n.look()
	}
	if n.server == nil {
		n.server = n.newServer([]netip.Addr{m.Service}, func(a netip.Addr) bool { return a.IsLoopback() || a == m.Service || n.isGuest(a) })
	}
}

// sameWiring reports whether the system would be told the same.
func sameWiring(a, b host.ResolverConfig) bool {
	return a.Server == b.Server && a.All == b.All && slices.Equal(a.Domains, b.Domains) && slices.Equal(a.Search, b.Search)
}

// leadsOut reports whether a node is an exit node.
func leadsOut(self weft.Node) bool {
	return slices.ContainsFunc(self.Routes, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// newServer makes a server for what was set. n is locked.
func (n *names) newServer(on []netip.Addr, allow func(netip.Addr) bool) *dns.Server {
	cfg := dns.Config{
		Zone: n.zone, Split: dns.NewSplit(n.netmap.DNS.Split),
		ListenConfig: net.ListenConfig{Control: host.FreeBind}, Upstreams: n.upstreams, Logger: n.log, Allow: allow,
	}
	for _, a := range on {
		cfg.Listen = append(cfg.Listen, netip.AddrPortFrom(a, dns.Port))
	}
	if stack := n.cfg.Device.stack; stack != nil {
		cfg.Bind = stack.Bind
	}
	s, err := dns.NewServer(cfg)
	if err != nil {
		n.log.Warn("the map's names cannot be resolved", "error", err)
	}
	return s
}

// wish is what the system is to be told of a map's names. n is locked.
func (n *names) wish(zone *dns.Zone, split dns.Split) host.ResolverConfig {
	m := n.netmap
	domains := slices.Concat([]string{m.Domain}, split.Domains())
	var reverse []string
	for _, r := range m.Ranges {
		reverse = append(reverse, dns.ReverseDomains(r)...)
	}
	for _, name := range zone.Elsewhere() {
		if strings.HasSuffix(name, ".arpa") {
			reverse = append(reverse, name)
		} else {
			domains = append(domains, name)
		}
	}
	domains = append(domains, reverse...)
	search := append([]string{m.Domain}, m.DNS.Search...)
	if room := maxDomains - len(search); len(domains) > room {
		n.log.Debug("not all reverse names are routed here", "names", len(domains)-room)
		domains = domains[:room]
	}
	return host.ResolverConfig{
		Interface: n.cfg.Device.Name, Server: m.Service, Domains: domains, Search: search, All: len(m.DNS.Upstreams) > 0,
		StateDir: n.cfg.StateDir, Logger: n.log,
	}
}

// serve lets who has one of these addresses ask, too.
func (n *names) serve(guests []netip.Prefix) { n.guests.Store(&guests) }

func (n *names) isGuest(a netip.Addr) bool {
	guests := n.guests.Load()
	return guests != nil && slices.ContainsFunc(*guests, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// start serves the names that were set and tells the system, once. It does not wait.
func (n *names) start(m weft.NetworkMap) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.started {
		return
	}
	n.started = true
	if n.server == nil || !m.Service.IsValid() {
		close(n.settled)
		return
	}
	server := n.server
	if stack := n.cfg.Device.stack; stack != nil { // the proxy looks names up, and guests ask
		close(n.settled)
		n.wiring.Go(func() {
			err := stack.AddService(m.Service)
			if err == nil {
				err = server.Start(n.ctx)
			}
			if err != nil {
				n.fail(fmt.Sprintf("names are not resolved for plain WireGuard nodes: %v", err))
				return
			}
			n.keep(func(context.Context) error { return nil })
		})
		return
	}
	n.wiring.Go(func() {
		settle := sync.OnceFunc(func() { close(n.settled) })
		defer settle()
		if err := server.Start(n.ctx); err != nil {
			n.fail(fmt.Sprintf("names of the overlay are not resolved on this machine: %v", err))
			return
		}
		n.keep(func(ctx context.Context) error {
			defer settle()
			return n.wire(ctx)
		})
	})
}

// keep looks after what was set until the end, whenever that changes, and again later where something failed.
func (n *names) keep(wire func(context.Context) error) {
	for {
		ctx, cancel := context.WithTimeout(n.ctx, wireTimeout)
		err := errors.Join(wire(ctx), n.serveMembers(ctx))
		cancel()
		var again <-chan time.Time
		if err == nil {
			n.fail("")
			if n.mayBeOverwritten() {
				again = time.After(lookAfter)
			}
		} else {
			n.fail(err.Error())
			again = time.After(rewireAfter)
		}
		select {
		case <-n.ctx.Done():
			return
		case <-n.kick:
		case <-again:
		}
	}
}

// look has what was set looked after anew.
func (n *names) look() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// wire tells the system's resolver what was set. It is cheap when that knows it already.
func (n *names) wire(ctx context.Context) error {
	n.mu.Lock()
	plan, domain := n.plan, n.netmap.Domain
	n.mu.Unlock()
	if n.cfg.Settings.NoDNS {
		return nil
	}
	if o, some := host.Namesake(plan.Interface, domain); some {
		n.unwire()
		return fmt.Errorf("names of this network are not resolved on this machine: the network on %s calls its nodes NAME.%s, too; "+
			"give one of the two another domain on its server with `weft admin dns set domain=DOMAIN`", o.Interface, o.Domain)
	}
	r, err := host.ConfigureResolver(ctx, plan)
	if err != nil {
		return fmt.Errorf("names of the overlay are answered on %s, and the system's resolver does not know: %w", plan.Server, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.resolver = r
	return nil
}

// mayBeOverwritten reports whether the system was told by a file that other programs write, too.
func (n *names) mayBeOverwritten() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.resolver != nil && n.resolver.Mode() == host.ResolverFile
}

// unwire takes out what the system was told.
func (n *names) unwire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.resolver == nil {
		return
	}
	if err := n.resolver.Close(); err != nil {
		n.log.Error("the system's resolver could not be put back; the next start or `weft down` tries again", "error", err)
	}
	n.resolver = nil
}

// serveMembers answers members on the addresses of an exit node: who leaves the overlay there has names resolved there, too.
func (n *names) serveMembers(ctx context.Context) error {
	n.mu.Lock()
	self, ranges, former := n.netmap.Self, n.netmap.Ranges, n.members
	exit := leadsOut(self)
	if exit == (former != nil) {
		n.mu.Unlock()
		return nil
	}
	if n.members = nil; !exit {
		n.mu.Unlock()
		former.Close()
		return nil
	}
	s := n.newServer(self.Addrs, func(a netip.Addr) bool {
		return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
	})
	n.mu.Unlock()
	if err := s.Start(ctx); err != nil {
		s.Close()
		return fmt.Errorf("names are not resolved for those who use this exit node: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.members = s
	s.Replace(n.zone, dns.NewSplit(n.netmap.DNS.Split)) // what was set meanwhile
	return nil
}

// fail notes what is wrong; "": nothing is.
func (n *names) fail(sentence string) {
	if n.ctx.Err() != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if sentence != "" && sentence != n.problem {
		n.log.Warn(sentence)
	}
	n.problem = sentence
}

// upstreams are asked for a name that is neither the overlay's nor of a split domain: the network of this machine that it is
// of, or whom the administrator says, or whom the system asked before. Where the system sends us questions of the
// overlay alone, guests still ask everything: then it is whom the system asks now.
func (n *names) upstreams(name string) []netip.AddrPort {
	o := n.otherNetworks()
	if list, ok := o.split.For(name); ok {
		return list
	}
	n.mu.Lock()
	r, list := n.resolver, n.netmap.DNS.Upstreams
	n.mu.Unlock()
	if len(list) > 0 {
		return list
	}
	if r != nil {
		list = r.Upstreams()
	}
	if len(list) == 0 {
		list = host.NameServers()
	}
	return slices.DeleteFunc(list, func(a netip.AddrPort) bool { return slices.Contains(o.servers, a.Addr()) })
}

func (n *names) otherNetworks() *others {
	now := time.Now()
	if o := n.others.Load(); o != nil && now.Sub(o.at) < othersFor {
		return o
	}
	o := &others{at: now}
	if n.cfg.Device.stack == nil {
		domains := make(map[string][]netip.AddrPort)
		for _, other := range host.Overlays(n.cfg.Device.Name) {
			at := []netip.AddrPort{netip.AddrPortFrom(other.Server, dns.Port)}
			domains[other.Domain] = at
			for _, r := range other.Ranges {
				for _, d := range dns.ReverseDomains(r) {
					domains[d] = at
				}
			}
			o.servers = append(o.servers, other.Server)
		}
		o.split = dns.NewSplit(domains)
	}
	n.others.Store(o)
	return o
}

// lookup finds a peer's addresses.
func (n *names) lookup(name string) []netip.Addr {
	n.mu.Lock()
	s := n.server
	n.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.Lookup(name)
}

// how says how the system's resolver was told, and what is wrong with it, if anything.
func (n *names) how() (mode, problem string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.resolver == nil {
		return "off", n.problem
	}
	return n.resolver.Mode(), n.problem
}

// close takes everything out again.
func (n *names) close() {
	n.cancel()
	n.wiring.Wait()
	n.unwire()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range []*dns.Server{n.server, n.members} {
		if s != nil {
			s.Close()
		}
	}
}

// lookupAddrs resolves a host name, or takes an address as it is.
func lookupAddrs(ctx context.Context, name string) ([]netip.Addr, error) {
	return host.OwnResolver().LookupNetIP(ctx, "ip", name)
}
