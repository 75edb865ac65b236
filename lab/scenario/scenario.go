// Package scenario is the text in which a laid-out network, what happens to it and what is expected of it are
// written down, and the nouns that the laboratories which run it share.
//
// A [Scenario] is read by [Parse] and written by [Format]; docs/scenarios.md explains the text, shipped/ holds
// examples, each of which [Shipped] finds by its name. A [Backend] runs it: lab/sim in virtual time with weft's
// own agents, lab/real in network namespaces with the real binary or any other program.
//
// # What a scenario means
//
// Time zero is when all nodes that start at once are up and have each other's network map; every At and every
// Within counts from there, or from the event that an expectation names. Between A and B the path is direct while
// both send directly, none while either has no way at all, and relay otherwise. A scenario is over when every
// expectation is decided and every event has happened, at Limit at the latest.
//
// # Behind the nodes
//
// A [Lan] is a network of its own behind hosts, with addresses that the text gives. What an administrator says to weft
// stands in the text in weft's own words ([Command]) and as its own document (Policy), and whether one machine reaches
// another, and how it is seen there, is asked again and again ([Reach]). Only real machines have all that: see
// [Scenario.OnlyReal].
//
// # What it refuses
//
// A text that names what there is not, an address that cannot be, networks that hang on themselves or nest deeper
// than [MaxDepth]: each is refused with its line and what was expected there. What a backend cannot do it refuses
// by an [Unsupported] error before anything is built.
package scenario

import (
	"context"
	"fmt"
	"time"

	"weft"
	"weft/lab/vnet"
)

// Limits of a scenario. They keep a slip of the keyboard from filling a machine; none is near what a person writes.
const (
	// MaxDepth is how many routers may stand between a host and the internet: a home's, a building's, a
	// carrier's, and one to spare.
	MaxDepth = 4
	// MaxMachines is how many routers and hosts there may be.
	MaxMachines = 64
	// MaxLimit is how long a scenario may take.
	MaxLimit = 24 * time.Hour
	// DefaultLimit is how long it takes at most where it does not say.
	DefaultLimit = 2 * time.Minute
	// DefaultHold is for how long `stays` looks on after an event.
	DefaultHold = 10 * time.Second
)

// Internet is the name of the network that everything hangs on.
const Internet = "internet"

// A Scenario is one network and its story. The zero Scenario is an empty internet.
type Scenario struct {
	Name    string   `json:"name"`
	About   string   `json:"about,omitempty"`
	Routers []Router `json:"routers"` // each after the one it is on
	Lans    []Lan    `json:"lans,omitempty"`
	Hosts   []Host   `json:"hosts"`
	Policy  *Policy  `json:"policy,omitempty"` // nil: the server's default
	// Commands are said before time zero, in this order; to a host that starts later, when it is up.
	Commands []Command     `json:"commands,omitempty"`
	Flows    []Flow        `json:"flows,omitempty"`
	Events   []Event       `json:"events,omitempty"` // by At
	Probes   []Probe       `json:"probes,omitempty"`
	Expect   []Expectation `json:"expect,omitempty"`
	Limit    time.Duration `json:"limit_ns"` // 0: DefaultLimit, or a little more than the last thing in it
}

// A Router is a NAT or a firewall, or just a router, with a network inside.
type Router struct {
	Name string `json:"name"`
	On   string `json:"on"` // another router's inside, or Internet
	// NAT is what it does. Public is empty unless the text names the addresses: the backend picks PoolSize of them.
	NAT      vnet.NATConfig `json:"nat"`
	PoolSize int            `json:"pool,omitempty"` // 0: one, or as many as Public has
	// Kernel makes the namespaces' router do it by the kernel's own NAT ("masquerade", "random", "dnat",
	// "firewall") instead of by lab/vnet's; NAT then says what that amounts to, for other backends. See Kernels.
	Kernel string `json:"kernel,omitempty"`
	IPv6   bool   `json:"ipv6,omitempty"` // it has IPv6 inside, filtered like IPv4, never translated
	Link   Link   `json:"link"`           // its way to what it is on, each direction
	Line   int    `json:"-"`
}

// A Role is what a host is for.
type Role uint8

// The roles.
const (
	Node   Role = iota // runs weft, as a node
	Server             // runs weft server: coordinator, relay and STUN; a scenario with nodes has one
	Relay              // runs weft relay: relay and STUN
	Plain              // runs only what `run` names
)

var roleNames = [...]string{"host", "server", "relay", "machine"}

// String is the word that declares such a host.
func (r Role) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// MarshalText writes the word.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// A Host is a machine.
type Host struct {
	Name string `json:"name"`
	On   string `json:"on"` // of several, the first
	// Places are all networks that it has a link to, with metrics; empty: On alone.
	Places []Leg         `json:"places,omitempty"`
	Role   Role          `json:"role"`
	IPv6   bool          `json:"ipv6,omitempty"`
	Start  time.Duration `json:"start_ns,omitzero"` // when it is switched on
	Link   Link          `json:"link"`              // of several, each that leads to no lan
	Member Member        `json:"member,omitzero"`   // how a node joins
	// Rendezvous makes a server one that introduces nodes by two words, and nothing else.
	Rendezvous bool     `json:"rendezvous,omitempty"`
	Run        []string `json:"run,omitempty"` // commands, started in this order and left running
	Line       int      `json:"-"`
}

// A Flow is data from one node to another in even steps. What it loses is counted.
type Flow struct {
	From, To string
	Every    time.Duration
	Rate     float64       // bit/s, which Every follows from; 0: Every was said
	Size     int           // bytes of a packet of the overlay; 0: 100
	Start    time.Duration // the first one
	For      time.Duration // 0: to the end
	TCP      bool          // all over one connection, which From begins; what is lost is that which the connection's end cuts off
	Line     int           `json:"-"`
}

// A Verb is what an event does.
type Verb string

// The verbs. Args of an event are their operands, without the words between them.
const (
	Block     Verb = "block"     // router: UDP no longer passes
	Allow     Verb = "allow"     // router: UDP passes again
	Forget    Verb = "forget"    // router: every mapping is gone, as after a power cut
	Rebind    Verb = "rebind"    // router: every mapping moves to another port
	Readdress Verb = "readdress" // router: another address outside; host: another address where it is
	Move      Verb = "move"      // host, network: it leaves one network and joins another
	Down      Verb = "down"      // router or host, or one link of a host: it goes down, which a host sees
	Up        Verb = "up"        // the same: it is up again
	Cut       Verb = "cut"       // the same, perhaps one direction, out or in: it carries nothing, and nobody is told
	Mend      Verb = "mend"      // the same: it does again
	Set       Verb = "set"       // the same, then key=value...: the link is another from now on
	Restart   Verb = "restart"   // host: what runs on it is stopped and started
	Stop      Verb = "stop"      // host: what runs on it is stopped
	Start     Verb = "start"     // host: it is started again
	Weft      Verb = "weft"      // host, words: a command of weft's is said there
)

// An Event happens to the network.
type Event struct {
	At    time.Duration `json:"at_ns"`
	Every time.Duration `json:"every_ns,omitempty"` // it happens again and again so often, 0: once,
	For   time.Duration `json:"for_ns,omitempty"`   // until so long after At
	Verb  Verb          `json:"verb"`
	Args  []string      `json:"args"`
	// Link is the whole link of a set event as it is afterwards, the first time; of the others it is zero.
	Link Link `json:"link,omitzero"`
	Line int  `json:"-"`
}

// String is the event as the text has it, without its time: how expectations name it.
func (e Event) String() string { return eventText(e) }

// A Probe is a command that says how two machines of others reach each other: it prints direct or relay, as the
// last word of its output, and is run on A again and again.
type Probe struct {
	A, B    string
	Command string
	Line    int `json:"-"`
}

// An Expectation is about the pair A and B, or the link A. Exactly one thing is expected: with Gap, that no data of the
// pair's flows is missed for longer than Gap; with Whole, that no more than Lost packets of them are lost; with Rate,
// that they bring so much from Within on, for Hold; with Reach, that A reaches B as it says; with Idle, that the link carries next to nothing for Hold; with Stays,
// that Path is in use all the time from After on, for Hold; else that Path is in use at some time within Within, and from
// then on for Hold.
type Expectation struct {
	A, B   string
	Path   weft.PathKind
	Within time.Duration // 0 with Hold: from the first path on, none other than Path until Hold is over
	Hold   time.Duration
	Stays  bool
	Gap    time.Duration // the longest silence of a flow; a lost packet of a flow counts as one step of it
	Whole  bool          // instead of Gap: no more than Lost packets are lost
	Lost   int           // with Whole
	Rate   float64       // bit/s of the overlay's packets that arrive, on average
	Idle   bool          // of the link A
	Reach  Reach         // B is a machine, router, or one address of a machine: HOST.NETWORK
	After  string        // an event (Event.String); empty: time zero. Of several alike, each
	Line   int           `json:"-"`
}

// String is the expectation as the text has it, without the word expect.
func (e Expectation) String() string { return expectationText(e) }

// Options say how a scenario is to be run.
type Options struct {
	Seed      uint64
	Binary    string       // path of weft, for backends that start it
	Log       func(string) // progress, a sentence a call; nil: none
	KeepTrace bool         // of packets, in Result.Trace
	MaxTrace  int          // packets kept in Trace, the first ones; 0: all
	Dir       string       // for what a backend keeps (logs); empty: nothing is kept
}

// A Result is what came of a run.
type Result struct {
	Scenario string            `json:"scenario"`
	Backend  string            `json:"backend"`
	Seed     uint64            `json:"seed"`
	OK       bool              `json:"ok"` // every expectation was met
	Pairs    []PairResult      `json:"pairs"`
	Outcomes []Outcome         `json:"outcomes"`
	Flows    []FlowResult      `json:"flows,omitempty"`
	Changes  []Change          `json:"changes,omitempty"` // of the pairs' paths, in order
	Trace    []Packet          `json:"trace,omitempty"`
	Logs     map[string]string `json:"-"`          // by host; they are files of their own
	Elapsed  time.Duration     `json:"elapsed_ns"` // scenario time, not the clock's
}

// A PairResult is how two nodes reached each other in the end.
type PairResult struct {
	A           string        `json:"a"`
	B           string        `json:"b"`
	Path        weft.PathKind `json:"path"`
	DirectAfter time.Duration `json:"direct_after_ns,omitempty"` // both ends direct for the first time; 0: never
	Packets     int           `json:"packets,omitempty"`         // datagrams that both spent on finding a direct path
	Reason      string        `json:"reason,omitempty"`          // A's, of its last change of path
	Way         string        `json:"way,omitempty"`             // how the direct path was found, or A's address of B
}

// A Change is when a pair's path became another.
type Change struct {
	At   time.Duration `json:"at_ns"`
	A    string        `json:"a"`
	B    string        `json:"b"`
	Path weft.PathKind `json:"path"`
}

// An Outcome is what became of an expectation.
type Outcome struct {
	Expectation string `json:"expectation"`
	Line        int    `json:"line"`
	OK          bool   `json:"ok"`
	Why         string `json:"why"` // what was seen, in either case
}

// A FlowResult is what became of a flow.
type FlowResult struct {
	From    string        `json:"from"`
	To      string        `json:"to"`
	Sent    int           `json:"sent"`
	Lost    int           `json:"lost"`
	Silence time.Duration `json:"longest_silence_ns"`
	// OutOfOrder are those that came after one that was sent later, and Rate is what came, in bit/s, from the first
	// that came to the last.
	OutOfOrder int     `json:"out_of_order,omitempty"`
	Rate       float64 `json:"rate_bits,omitempty"`
}

// A Packet is one step of a datagram on its way, for people: timelines and sequence diagrams.
type Packet struct {
	At      time.Duration `json:"at_ns"`
	From    string        `json:"from"` // who sent it, as seen there
	To      string        `json:"to"`   // to where it is addressed
	Where   string        `json:"where"`
	What    string        `json:"what"`
	Dropped bool          `json:"dropped,omitempty"`
	Why     string        `json:"why,omitempty"`
}

// A Backend runs scenarios. Run may be called at once from several goroutines if its documentation says so.
type Backend interface {
	Name() string
	Run(ctx context.Context, s Scenario, o Options) (Result, error)
}

// Unsupported is a backend's answer to a scenario that asks for what it cannot do.
type Unsupported struct {
	Backend, What string
	Line          int // of the scenario; 0: none in particular
}

func (e *Unsupported) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("line %d: the %s backend cannot %s", e.Line, e.Backend, e.What)
	}
	return fmt.Sprintf("the %s backend cannot %s", e.Backend, e.What)
}
