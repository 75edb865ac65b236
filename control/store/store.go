// Package store keeps what the coordination server must not forget: who is in the network, which addresses
// and numbers were given out, which join keys were made and which of them were used.
//
// The server (package control) holds all of it in memory and is the only one to write. It reads once, with
// [Store.Load], and from then on hands down [Batch]es: lists of records to put or drop, each of which becomes
// durable whole or not at all. A server acknowledges nothing before Apply has returned. That is the entire
// seam, small enough for a file on one machine ([OpenSQLite]) and for a database shared by several.
//
// The rules that must hold whatever the server believes are checked once more down here, so that a mistake
// above becomes an error and not a corrupt network: names, keys, addresses and people's identities are unique, counters
// never go back, a node's user exists, a node has a machine key or a gateway. Every implementation runs the suite in storetest.
//
// What changes by the second (who is online, where a node may be reached) is not kept. When a node was last
// seen is, but only as it suits: [Seen] rides along with other records.
//
// Times are kept to the millisecond and come back in UTC.
package store

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"weft"
	"weft/key"
)

var (
	// ErrFull is wrapped by errors that say that there is no room left to write.
	ErrFull = errors.New("no space left")

	// ErrConflict is wrapped when a batch breaks one of the rules in the package comment.
	ErrConflict = errors.New("conflicts with what is stored")

	// ErrNewer is wrapped when what is stored was written by a later version of weft.
	ErrNewer = errors.New("written by a newer weft")
)

// A Store keeps a State. Its methods are called by one goroutine at a time.
type Store interface {
	// Load reads everything. Of a new store it returns the zero State. Lists are sorted by number or name.
	Load(ctx context.Context) (State, error)

	// Apply carries out a batch in its order, whole or, where it returns an error, not at all. When it returns
	// nil the batch survives the death of the process and of the machine. After an error the store can be used as
	// before.
	Apply(ctx context.Context, b Batch) error

	// Close ends the store's use.
	Close() error
}

// A State is everything that is stored.
type State struct {
	Network   Network
	Users     []User
	Keys      []JoinKey
	Nodes     []Node
	Relays    []Relay
	Revoked   []Revocation
	Documents []Document
}

// Network is what there is one of. A zero Name means that the network was never set up.
type Network struct {
	Name [8]byte // random; it is in every relay ticket
	IPv4 netip.Prefix
	IPv6 netip.Prefix
	// Next numbers to give. They only grow: what was given once is never given again.
	NextNode  weft.NodeID
	NextRelay weft.RelayID
	NextKey   uint32
	// Given are the IPv4 addresses that nodes had or have, as disjoint spans in ascending order. (An IPv6
	// address is made of the node's number.)
	Given []Span
}

// A Span is a run of addresses, both ends included.
type Span struct{ First, Last netip.Addr }

// A User owns nodes.
type User struct {
	Name     string
	Created  time.Time
	Expires  time.Time // zero: never
	Disabled time.Time // zero: not
	// Issuer and Subject are who the user is at a provider of OpenID Connect; both or neither are empty, and no two users
	// have the same. The rest is what the provider said last, for people and for policy.
	Issuer, Subject string
	Email, Display  string
	Groups          []string
}

// A JoinKey lets machines in. The secret itself is not kept.
type JoinKey struct {
	ID        uint32
	Hash      [32]byte // SHA-256 of the secret
	User      string   // who owns the nodes that join with it; empty: nobody
	Tags      []string // as "tag:NAME"
	Reusable  bool
	Ephemeral bool
	Relay     bool // lets relays in, and no nodes
	Approved  bool // the nodes need no approval
	// NodeLifetime is after how long the nodes have to authenticate again; zero: never.
	NodeLifetime time.Duration
	Created      time.Time
	Expires      time.Time // zero: never
	Used         time.Time // last; zero: never
	Uses         uint32
	Revoked      time.Time // zero: not
}

// A Node is a member of the network.
type Node struct {
	ID        weft.NodeID
	Machine   key.MachinePublic // zero of one with a Gateway, and only there
	Key       key.NodePublic
	Name      string
	IPv4      netip.Addr
	IPv6      netip.Addr
	User      string
	Tags      []string // as "tag:NAME"
	Ephemeral bool
	JoinKey   uint32      // the number of the key that let it in; zero: the administrator or a sign-in did
	Gateway   weft.NodeID // of one that speaks plain WireGuard; zero: it speaks weft
	Created   time.Time
	Expires   time.Time // zero: never
	Seen      time.Time // when it was last online; zero: unknown
	Approved  time.Time // zero: it waits for an administrator
	Disabled  time.Time // zero: not
	// Rotation counts the node keys that came before this one; Rotated is when it changed last, zero: never.
	Rotation uint32
	Rotated  time.Time
	// Advertised are the networks that the node offers to speak for, Routes those of them, or of earlier ones, that it may.
	Advertised, Routes []netip.Prefix
}

// A Relay is a stand-alone relay.
type Relay struct {
	weft.Relay
	Machine key.MachinePublic
	Created time.Time
}

// A Revocation says that no relay shall honour a node's tickets, until the last of them has ended by itself.
type Revocation struct {
	Node  weft.NodeID
	Until time.Time
}

// A Document is a text that the administrator keeps with the server. Its name says what it is for: "policy", "dns".
type Document struct {
	Name    string
	Text    string
	Changed time.Time
}

// A Batch is what becomes durable at once.
type Batch []Op

// An Op is one of the types below. A Put adds a record or replaces the one of the same number or name; a Drop of
// what is not there does nothing.
type Op interface{ op() }

// The operations.
type (
	SetNetwork     Network
	PutUser        User
	DropUser       struct{ Name string }
	PutKey         JoinKey
	PutNode        Node
	DropNode       struct{ ID weft.NodeID }
	PutRelay       Relay
	DropRelay      struct{ ID weft.RelayID }
	PutRevocation  Revocation
	DropRevocation struct{ Node weft.NodeID }
	PutDocument    Document
	DropDocument   struct{ Name string }

	// Seen notes when a node was last online; of a node that is gone it does nothing.
	Seen struct {
		Node weft.NodeID
		At   time.Time
	}
)

func (SetNetwork) op()     {}
func (PutUser) op()        {}
func (DropUser) op()       {}
func (PutKey) op()         {}
func (PutNode) op()        {}
func (DropNode) op()       {}
func (PutRelay) op()       {}
func (DropRelay) op()      {}
func (PutRevocation) op()  {}
func (DropRevocation) op() {}
func (PutDocument) op()    {}
func (DropDocument) op()   {}
func (Seen) op()           {}

// Precision is the unit in which times are kept.
const Precision = time.Millisecond
