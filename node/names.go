package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/dns"
	"weft/host"
)

// wireTimeout bounds telling the system's resolver of ours; systemd-resolved answers in milliseconds.
const wireTimeout = 10 * time.Second

// names resolves the overlay's names on this machine: a server on the service address, and the system's resolver
// told of it. set, start and how may be called from different goroutines; close once, last.
type names struct {
	cfg meshConfig
	log *slog.Logger

	mu       sync.Mutex
	server   *dns.Server // nil before the first map
	resolver *host.Resolver
	problem  string
	started  bool
	ctx      context.Context
	cancel   context.CancelFunc
	wiring   sync.WaitGroup
	settled  chan struct{}                  // closed when the system was told, or could not be
	guests   atomic.Pointer[[]netip.Prefix] // who may ask besides this machine: plain WireGuard peers, who have no resolver
}

func newNames(cfg meshConfig) *names {
	ctx, cancel := context.WithCancel(context.Background())
	return &names{cfg: cfg, log: cfg.Logger, ctx: ctx, cancel: cancel, settled: make(chan struct{})}
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
	if n.server != nil {
		n.server.Replace(zone, dns.NewSplit(m.DNS.Split))
		return
	}
	cfg := dns.Config{
		Zone: zone, Split: dns.NewSplit(m.DNS.Split), Listen: []netip.AddrPort{netip.AddrPortFrom(m.Service, dns.Port)},
		ListenConfig: net.ListenConfig{Control: host.FreeBind}, Upstreams: n.upstreams, Logger: n.log,
		Allow: func(a netip.Addr) bool { return a.IsLoopback() || a == m.Service || n.isGuest(a) },
	}
	if stack := n.cfg.Device.stack; stack != nil {
		cfg.Bind = stack.Bind
	}
	n.server, err = dns.NewServer(cfg)
	if err != nil {
		n.log.Warn("the map's names cannot be resolved", "error", err)
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
			}
		})
		return
	}
	n.wiring.Go(func() {
		defer close(n.settled)
		if err := server.Start(n.ctx); err != nil {
			n.fail(fmt.Sprintf("names of the overlay are not resolved on this machine: %v", err))
			return
		}
		if n.cfg.Settings.NoDNS {
			return
		}
		ctx, cancel := context.WithTimeout(n.ctx, wireTimeout)
		defer cancel()
		domains := []string{m.Domain}
		for _, r := range m.Ranges {
			domains = append(domains, dns.ReverseDomains(r)...)
		}
		r, err := host.ConfigureResolver(ctx, host.ResolverConfig{
			Interface: n.cfg.Device.Name, Server: m.Service, Domains: domains, StateDir: n.cfg.StateDir, Logger: n.log,
		})
		if err != nil {
			n.fail(fmt.Sprintf("names of the overlay are answered on %s, and the system's resolver does not know: %v", m.Service, err))
			return
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.resolver = r
	})
}

func (n *names) fail(sentence string) {
	if n.ctx.Err() != nil {
		return
	}
	n.log.Warn(sentence)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.problem = sentence
}

// upstreams are whom the system asked before; the names that are not ours go to them. Where the system sends us
// questions of the overlay alone, guests still ask everything: then it is whom the system asks now.
func (n *names) upstreams(string) []netip.AddrPort {
	n.mu.Lock()
	r := n.resolver
	n.mu.Unlock()
	if r != nil {
		if list := r.Upstreams(); len(list) > 0 {
			return list
		}
	}
	return host.NameServers()
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

// refresh looks whether somebody rewrote the system's resolver meanwhile, as a DHCP client does on a new network.
func (n *names) refresh() {
	n.mu.Lock()
	r := n.resolver
	n.mu.Unlock()
	if r == nil {
		return
	}
	n.wiring.Go(func() {
		ctx, cancel := context.WithTimeout(n.ctx, wireTimeout)
		defer cancel()
		if err := r.Refresh(ctx); err != nil {
			n.fail(fmt.Sprintf("names of the overlay are no longer resolved on this machine: %v", err))
		}
	})
}

// close takes everything out again.
func (n *names) close() {
	n.cancel()
	n.wiring.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.resolver != nil {
		if err := n.resolver.Close(); err != nil {
			n.log.Error("the system's resolver could not be put back; the next start or `weft down` tries again", "error", err)
		}
	}
	if n.server != nil {
		n.server.Close()
	}
}

// lookupAddrs resolves a host name, or takes an address as it is.
func lookupAddrs(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}
