package control

import (
	"net/netip"
	"time"

	"weft"
	"weft/key"
	"weft/policy"
)

// The documents of the admin API. Answers carry their schema_version; requests do not.

// A UserInfo is a user as the administrator sees it.
type UserInfo struct {
	Name     string    `json:"name"`
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires,omitzero"`
	Disabled time.Time `json:"disabled,omitzero"`
	Active   bool      `json:"active"` // neither disabled nor expired
	Nodes    int       `json:"nodes"`  // how many are the user's
	// Issuer and Subject are who the user is at a provider of sign-ins; the rest is what that said last.
	Issuer  string   `json:"issuer,omitempty"`
	Subject string   `json:"subject,omitempty"`
	Email   string   `json:"email,omitempty"`
	Display string   `json:"display,omitempty"`
	Groups  []string `json:"groups,omitempty"`
}

// A KeyState says whether a join key still lets anybody in.
type KeyState string

// The states of a join key.
const (
	KeyValid   KeyState = "valid"
	KeySpent   KeyState = "spent"   // for one machine, and used
	KeyExpired KeyState = "expired" // past its end
	KeyRevoked KeyState = "revoked" // withdrawn
)

// A KeyInfo is a join key as the administrator sees it. The secret in it was shown once, when it was made.
type KeyInfo struct {
	ID        uint32   `json:"id"`
	State     KeyState `json:"state"`
	User      string   `json:"user,omitempty"`
	Tags      []string `json:"tags,omitempty"`
	Reusable  bool     `json:"reusable"`
	Ephemeral bool     `json:"ephemeral"`
	Relay     bool     `json:"relay"`
	Approved  bool     `json:"approved,omitempty"` // its nodes need no approval
	// NodeLifetime is after how long its nodes have to authenticate again, in nanoseconds; zero: never.
	NodeLifetime time.Duration `json:"node_lifetime,omitempty"`
	Created      time.Time     `json:"created"`
	Expires      time.Time     `json:"expires,omitzero"`
	Used         time.Time     `json:"used,omitzero"` // last
	Uses         uint32        `json:"uses"`
}

// Member is the standing of a node that is one.
const Member = "member"

// A NodeInfo is a node as the administrator sees it.
type NodeInfo struct {
	weft.Node
	Machine string    `json:"machine"` // "" of one that speaks plain WireGuard
	Created time.Time `json:"created"`
	JoinKey uint32    `json:"join_key"` // the number of the key that let it in; 0: the administrator or a sign-in did
	// Standing is "member", or why the node is in nobody's map: "expired", "waiting" (for approval), "disabled",
	// "owner-disabled" (its user is disabled or expired).
	Standing string    `json:"standing"`
	Approved time.Time `json:"approved,omitzero"`
	Disabled time.Time `json:"disabled,omitzero"`
	Rotated  time.Time `json:"rotated,omitzero"` // when its node key changed last
	// Advertised are the networks that it offers to speak for; those that it may are in routes.
	Advertised []netip.Prefix `json:"advertised,omitempty"`
	Version    string         `json:"version,omitempty"` // of its weft, once it has connected to this start of the server
	OS         string         `json:"os,omitempty"`
	Remote     string         `json:"remote,omitempty"` // where its stream comes from
}

// A RouteInfo is a network that a node offers to speak for, or that it is approved for: it speaks for those that are both.
type RouteInfo struct {
	Route      netip.Prefix `json:"route"`
	Node       string       `json:"node"`
	ID         weft.NodeID  `json:"id"`
	Advertised bool         `json:"advertised"`
	Approved   bool         `json:"approved"`
	Online     bool         `json:"online"`
}

// RoutesAnswer is the answer of GET /v1/routes.
type RoutesAnswer struct {
	Schema int         `json:"schema_version"`
	Routes []RouteInfo `json:"routes"`
}

// RoutesRequest is the body of POST /v1/nodes/{node}/routes.
type RoutesRequest struct {
	Approve  []netip.Prefix `json:"approve,omitempty"`
	Withdraw []netip.Prefix `json:"withdraw,omitempty"`
}

// A RelayInfo is a relay as the administrator sees it.
type RelayInfo struct {
	weft.Relay
	Embedded  bool      `json:"embedded"`
	Connected bool      `json:"connected"` // its stream is up; true of the embedded one
	Created   time.Time `json:"created,omitzero"`
	Version   string    `json:"version,omitempty"`
	Remote    string    `json:"remote,omitempty"`
}

// Status is the server as the administrator sees it.
type Status struct {
	Schema      int          `json:"schema_version"`
	Version     string       `json:"version"`
	URL         string       `json:"url"`
	Key         string       `json:"key"`                   // the server's, public
	Fingerprint string       `json:"fingerprint,omitempty"` // SHA-256 of its certificate, in hexadecimal
	Network     string       `json:"network"`
	IPv4        netip.Prefix `json:"ipv4"`
	IPv6        netip.Prefix `json:"ipv6"`
	Service     netip.Addr   `json:"service"`
	MapVersion  uint64       `json:"map_version"`
	Users       int          `json:"users"`
	Nodes       int          `json:"nodes"`
	Online      int          `json:"online"`
	Relays      int          `json:"relays"`
	// Policy is the revision of the policy in force; "default": none was ever set.
	Policy string `json:"policy"`
	SignIn string `json:"sign_in,omitempty"` // the token for machines that people sign in for; no secret
	// Problems are sentences for the person in charge; empty when all is well.
	Problems []string `json:"problems"`
}

// A DNSInfo is what the network resolves.
type DNSInfo struct {
	DNSDocument
	Revision string    `json:"revision"`         // of the document; another one is another document
	Changed  time.Time `json:"changed,omitzero"` // last
}

// DNSRequest replaces what the network resolves. With a revision it does so only if nobody has changed that meanwhile.
type DNSRequest struct {
	DNSDocument
	Revision string `json:"revision,omitempty"`
}

// KeyRequest asks for a join key.
type KeyRequest struct {
	User      string        `json:"user,omitempty"` // who is to own the nodes; must exist
	Tags      []string      `json:"tags,omitempty"`
	Reusable  bool          `json:"reusable,omitempty"`
	Ephemeral bool          `json:"ephemeral,omitempty"`
	Relay     bool          `json:"relay,omitempty"`    // for a stand-alone relay, not a node
	Approved  bool          `json:"approved,omitempty"` // the nodes need no approval
	Lifetime  time.Duration `json:"lifetime,omitempty"` // nanoseconds; zero: for ever
	// NodeLifetime is after how long the nodes have to authenticate again, in nanoseconds; zero: never.
	NodeLifetime time.Duration `json:"node_lifetime,omitempty"`
}

// PlainRequest asks for a member that speaks plain WireGuard. Its private key stays where it is.
type PlainRequest struct {
	Key  key.NodePublic `json:"key"`
	Name string         `json:"name,omitempty"` // wished for
	// Via is the name or number of its gateway; empty: the node that is best reached. Endpoint is where that is
	// reached, as HOST:PORT; empty: where it says.
	Via      string        `json:"via,omitempty"`
	Endpoint string        `json:"endpoint,omitempty"`
	User     string        `json:"user,omitempty"`
	Tags     []string      `json:"tags,omitempty"`
	Lifetime time.Duration `json:"lifetime,omitempty"` // nanoseconds until its membership ends; zero: never
}

// GatewayInfo is what a plain member's configuration says of its gateway.
type GatewayInfo struct {
	ID       weft.NodeID    `json:"id"`
	Name     string         `json:"name"`
	Key      key.NodePublic `json:"key"`
	Endpoint string         `json:"endpoint"`
	Note     string         `json:"note,omitempty"` // a sentence on the endpoint, where it may not do
}

// ExpireRequest moves the end of a node or a join key.
type ExpireRequest struct {
	In    time.Duration `json:"in"`              // nanoseconds from now; zero: now
	Never bool          `json:"never,omitempty"` // of a node
}

// PolicyRequest brings a policy. Where it has a revision, the policy in force must be that one still.
type PolicyRequest struct {
	Text     string `json:"text"`
	Revision string `json:"revision,omitempty"`
}

// PolicyAnswer is a policy, and what is to be complained of in it. Of a request that has Problems other than warnings,
// nothing was done.
type PolicyAnswer struct {
	Schema   int              `json:"schema_version"`
	Revision string           `json:"revision"` // "default": none was ever set, and Text is one to begin with
	Changed  time.Time        `json:"changed,omitzero"`
	Text     string           `json:"text"`
	Problems []policy.Problem `json:"problems"`
}

// ExplainRequest asks whether one member may reach another. Each is a node, by name or number, or an address: a node's, or
// one behind it.
type ExplainRequest struct {
	From string `json:"from"`
	To   string `json:"to"`
	Port string `json:"port,omitempty"` // "tcp:22", "icmp"; empty: whatever is allowed
}

// ExplainAnswer says whether, and why.
type ExplainAnswer struct {
	Schema  int         `json:"schema_version"`
	From    string      `json:"from"`
	To      string      `json:"to"`
	Node    string      `json:"node"` // who enforces it
	Port    string      `json:"port,omitempty"`
	Allowed bool        `json:"allowed"` // something is, where no port was asked for
	Rules   []weft.Rule `json:"rules"`   // those that say so
	// Carrier is who passes packets on to an address that is no member's own. Which of several is in use each node decides for itself:
	// this is the first that is online.
	Carrier weft.Carrier `json:"carrier,omitzero"`
	Message string       `json:"message"`
}

// RenameRequest gives a node or user another name, MoveRequest a node another user, TagRequest other tags; UserRequest
// makes a user.
type (
	RenameRequest struct {
		Name string `json:"name"`
	}
	LinkRequest struct {
		Issuer  string `json:"issuer"` // both or neither empty
		Subject string `json:"subject"`
	}
	MoveRequest struct {
		User string `json:"user"` // empty: nobody
	}
	TagRequest struct {
		Tags []string `json:"tags"` // all of them; empty: none
	}
	UserRequest struct {
		Name string `json:"name"`
	}
)

// The answers.
type (
	UsersAnswer struct {
		Schema int        `json:"schema_version"`
		Users  []UserInfo `json:"users"`
	}
	KeysAnswer struct {
		Schema int       `json:"schema_version"`
		Keys   []KeyInfo `json:"keys"`
	}
	KeyAnswer struct {
		Schema int     `json:"schema_version"`
		Key    KeyInfo `json:"key"`
		Token  string  `json:"token,omitempty"` // of a key that was just made: a secret, shown this once
	}
	NodesAnswer struct {
		Schema int        `json:"schema_version"`
		Nodes  []NodeInfo `json:"nodes"`
	}
	NodeAnswer struct {
		Schema int      `json:"schema_version"`
		Node   NodeInfo `json:"node"`
	}
	PlainAnswer struct {
		Schema  int            `json:"schema_version"`
		Node    NodeInfo       `json:"node"`
		Gateway GatewayInfo    `json:"gateway"`
		Ranges  []netip.Prefix `json:"ranges"`
		Service netip.Addr     `json:"service"` // where the gateway answers for names
		Domain  string         `json:"domain"`
	}
	DNSAnswer struct {
		Schema int `json:"schema_version"`
		DNSInfo
	}
	UserAnswer struct {
		Schema int      `json:"schema_version"`
		User   UserInfo `json:"user"`
	}
	RelaysAnswer struct {
		Schema int         `json:"schema_version"`
		Relays []RelayInfo `json:"relays"`
	}
	DoneAnswer struct {
		Schema int `json:"schema_version"`
	}
)
