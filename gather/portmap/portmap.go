// Package portmap asks the router in front of this node to pass the node's UDP port on: by PCP (RFC 6887), NAT-PMP
// (RFC 6886) or UPnP's Internet Gateway Device (v1 and v2). A node so mapped is reached by everybody, whatever its
// NAT does otherwise: two nodes behind the hardest NATs become direct if one of them is.
//
// # How its parts meet
//
//	Client.Run ──▶ keeper, one per gateway ──▶ protocol: PCP │ NAT-PMP │ UPnP
//	     ▲                │                        Map, Refresh, Unmap
//	     └── states ◀─────┘
//
// A [Client] looks up the gateways of the default routes and runs a keeper for each. A keeper asks in all three
// ways at once and takes the first of PCP, NAT-PMP, UPnP that is there; the lease that it gets it looks after every
// minute and renews at half its life, and gives back when the node ends. It notices a router that was restarted, by
// its epoch (RFC 6887 section 8.5) or a mapping that is gone, and an external address that changed, at once where
// the router announces it (RFC 6886 section 3.2.1, RFC 6887 section 14.1).
//
// # What it refuses
//
// A router is not trusted with more than to map a port. Answers count from the gateway alone, and parsers bound
// what they take. UPnP's documents are fetched from the gateway's own address, whatever a search says of where they
// are, without redirects and proxies, and 256 KiB at most. A mapping of port 0, for less time than it takes to
// renew, or to an external address that no packet can have is no mapping. An external address that is private says
// that another NAT stands in front (Mapping.DoubleNAT): only peers behind that one too can use it.
//
// Nothing is asked for but the one port, and no request names port 0, which in NAT-PMP means all.
package portmap

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft"
	"weft/host"
)

// A Protocol is a way to ask a router.
type Protocol string

// The protocols, best first: PCP and NAT-PMP are a packet or two, and tell when a router was restarted.
const (
	PCP    Protocol = "PCP"
	NATPMP Protocol = "NAT-PMP"
	UPnP   Protocol = "UPnP"
)

// Config is what a client is made of.
type Config struct {
	// Port is the node's UDP port. Outside it is the same where that is to be had.
	Port uint16
	// Changed is told all gateways' states whenever one changed, by Run's goroutine; it may be nil.
	Changed func([]State)
	// Gateways lists the routers; host.Gateways if nil.
	Gateways func() ([]host.Gateway, error)
	Logger   *slog.Logger // slog.Default if nil
}

// A Mapping is a port that a router passes on.
type Mapping struct {
	Protocol Protocol
	Internal netip.AddrPort
	External netip.AddrPort
	// DoubleNAT tells that the external address is itself behind a NAT: it is private, or a provider's (RFC 6598).
	DoubleNAT bool
}

// Candidate is the mapping as peers are told of it.
func (m Mapping) Candidate() weft.Candidate {
	return weft.Candidate{Addr: m.External, Kind: weft.PortMapped}
}

// A State is how things stand with one gateway.
type State struct {
	Gateway netip.Addr
	Mapping Mapping // zero: none, for the reason that Problem says
	Problem string  // a sentence for people; empty while a mapping stands or is asked for
}

// Candidates are the mappings of all gateways.
func Candidates(states []State) (out []weft.Candidate) {
	for _, s := range states {
		if s.Mapping.External.IsValid() {
			out = append(out, s.Mapping.Candidate())
		}
	}
	return out
}

// maxGateways bounds how many routers are asked: a machine has one, or one per link.
const maxGateways = 4

// A Client keeps the node's UDP port mapped. Its methods may be called at once.
type Client struct {
	cfg    Config
	timing timing
	ways   []way
	nudged chan struct{}

	mu     sync.Mutex
	states []State
}

// New makes a client that does nothing until Run.
func New(cfg Config) *Client {
	if cfg.Gateways == nil {
		cfg.Gateways = host.Gateways
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Client{cfg: cfg, timing: defaultTiming, ways: allWays, nudged: make(chan struct{}, 1)}
}

// Recheck looks at once whether gateways have changed and their mappings stand: the network changed.
func (c *Client) Recheck() {
	select {
	case c.nudged <- struct{}{}:
	default:
	}
}

// States is how things stand, by gateway.
func (c *Client) States() []State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.states)
}

// report is a keeper's news.
type report struct {
	from  *keeper
	state State
}

// Run maps the port and keeps it mapped until ctx ends. Then it takes the mappings away, which takes two seconds at
// most, and returns.
func (c *Client) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reports := make(chan report)
	heard := make(chan netip.Addr)
	wg.Go(func() { listen(ctx, c.cfg.Logger, heard) })
	keepers := map[host.Gateway]*keeper{}
	tick := time.NewTicker(c.timing.gateways)
	defer tick.Stop()
	c.look(ctx, &wg, keepers, reports)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.look(ctx, &wg, keepers, reports)
		case <-c.nudged:
			c.look(ctx, &wg, keepers, reports)
			for _, k := range keepers {
				k.nudge()
			}
		case from := <-heard:
			for g, k := range keepers {
				if g.Addr == from {
					k.nudge()
				}
			}
		case r := <-reports:
			if keepers[r.from.gateway] == r.from {
				r.from.state = r.state
				c.publish(keepers)
			}
		}
	}
}

// look starts and ends keepers as gateways come and go.
func (c *Client) look(ctx context.Context, wg *sync.WaitGroup, keepers map[host.Gateway]*keeper, reports chan<- report) {
	gateways, err := c.cfg.Gateways()
	if err != nil {
		c.cfg.Logger.Debug("the router cannot be found out", "error", err)
		return
	}
	gateways = gateways[:min(len(gateways), maxGateways)]
	before := len(keepers)
	for g, k := range keepers {
		if !slices.Contains(gateways, g) {
			k.stop()
			delete(keepers, g)
		}
	}
	changed := len(keepers) != before
	for _, g := range gateways {
		if keepers[g] != nil {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		k := newKeeper(g, c, stop)
		keepers[g] = k
		wg.Go(func() {
			k.run(ctx, func(s State) {
				select {
				case reports <- report{k, s}:
				case <-ctx.Done():
				}
			})
		})
		changed = true
	}
	if changed {
		c.publish(keepers)
	}
}

// publish tells everybody of all states.
func (c *Client) publish(keepers map[host.Gateway]*keeper) {
	states := make([]State, 0, len(keepers))
	for k := range maps.Values(keepers) {
		states = append(states, k.state)
	}
	slices.SortFunc(states, func(a, b State) int { return a.Gateway.Compare(b.Gateway) })
	c.mu.Lock()
	same := slices.Equal(states, c.states)
	c.states = states
	c.mu.Unlock()
	if !same && c.cfg.Changed != nil {
		c.cfg.Changed(slices.Clone(states))
	}
}
