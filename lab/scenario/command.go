package scenario

import (
	"net/netip"
	"strings"

	"weft/policy"
)

// A Member is how a node joins, where it does not join as all others do.
type Member struct {
	User string   `json:"user,omitempty"` // whose it is; empty: nobody's
	Tags []string `json:"tags,omitempty"` // without tag:
	// Secret is NAME:SECRET of a network of two words, and Address the node's own there; the zero one: it picks one.
	Secret  string       `json:"secret,omitempty"`
	Address netip.Prefix `json:"address,omitzero"`
}

const (
	// minSecret is the shortest secret that weft takes (docs/two-words.md), in bytes.
	minSecret      = 8
	secretExpected = "NAME:SECRET, a secret of at least 8 letters: badger:psk-key-of-some-length"
)

func validSecret(s string) bool {
	name, secret, ok := strings.Cut(s, ":")
	return ok && validName(name) && len(secret) >= minSecret
}

// checkMember refuses what means nothing to a host of its role.
func (p *parser) checkMember(h *Host) {
	m := h.Member
	for _, x := range []struct {
		key  string
		said bool
		role Role
	}{
		{"user", m.User != "", Node}, {"tags", len(m.Tags) > 0, Node}, {"secret", m.Secret != "", Node},
		{"address", m.Address.IsValid(), Node}, {"rendezvous", h.Rendezvous, Server},
	} {
		if x.said && h.Role != x.role {
			p.fail(h.Line, "%s is a %s: expected %s= of a %s only", h.Name, h.Role, x.key, x.role)
		}
	}
	switch {
	case m.Secret != "" && (m.User != "" || len(m.Tags) > 0):
		p.fail(h.Line, "a network of two words has no users and tags: expected secret= alone, or user= and tags=")
	case m.Address.IsValid() && m.Secret == "":
		p.fail(h.Line, "nodes choose addresses in networks of two words: expected secret= beside address=")
	}
}

// checkMembers holds nodes against their server.
func (p *parser) checkMembers(server Host) {
	for _, h := range p.s.Hosts {
		switch {
		case h.Role != Node && (h.Role != Relay || !server.Rendezvous):
		case server.Rendezvous && h.Member.Secret == "":
			p.fail(h.Line, "%s introduces by two words only: expected a host with secret=", server.Name)
		case !server.Rendezvous && h.Member.Secret != "":
			p.fail(h.Line, "%s is no rendezvous: expected rendezvous=yes on line %d, or no secret=", server.Name, server.Line)
		}
	}
	if server.Rendezvous && p.s.Policy != nil {
		p.fail(p.s.Policy.Line, "%s introduces by two words, and keeps no policy: expected a server without rendezvous=yes", server.Name)
	}
}

// A Policy is the server's, in force before anybody joins.
type Policy struct {
	Lines []string `json:"lines"` // of the document
	Line  int      `json:"-"`     // of the first
}

// Text is the document.
func (p *Policy) Text() string { return strings.Join(p.Lines, "\n") + "\n" }

func (p *parser) readPolicy(line int, _ []string, rest string) {
	if rest == "" {
		p.fail(line, "expected a line of a policy, as docs/policy.md has it")
		return
	}
	if p.s.Policy == nil {
		p.s.Policy = &Policy{Line: line}
	}
	p.s.Policy.Lines = append(p.s.Policy.Lines, rest)
	p.policyLines = append(p.policyLines, line)
}

// checkPolicy says what is wrong with the document itself, each thing with its line here. Whether its users exist, and
// its own tests, the server looks at.
func (p *parser) checkPolicy() {
	if p.s.Policy == nil {
		return
	}
	_, problems := policy.Parse([]byte(p.s.Policy.Text()))
	for _, x := range problems {
		if !x.Warning {
			p.fail(p.policyLines[min(max(x.Line, 1), len(p.policyLines))-1], "the policy is wrong here: %s", x.Message)
		}
	}
}

// A Command is one of weft's own, said to the node or the server that runs on a host.
type Command struct {
	Host string   `json:"host"`
	Args []string `json:"args"` // behind the word weft
	Line int      `json:"-"`
}

// String is the command as the text has it.
func (c Command) String() string { return "weft " + c.Host + " " + strings.Join(c.Args, " ") }

// Command is what a weft event says.
func (e Event) Command() Command { return Command{Host: e.Args[0], Args: e.Args[1:], Line: e.Line} }

func (p *parser) readCommand(line int, words []string, _ string) {
	e, problem := parseEvent(append([]string{string(Weft)}, words...))
	if problem != "" {
		p.fail(line, "%s", problem)
		return
	}
	e.Line = line
	p.s.Commands = append(p.s.Commands, e.Command())
}

// programs are what a backend starts by itself; said as a command, it would never end.
var programs = []string{"node", "server", "relay"}

// checkCommand looks at to whom a command is said. What weft thinks of its words it says itself.
func (p *parser) checkCommand(c Command) {
	h := p.host(c.Line, c.Host)
	if h == nil {
		return
	}
	word := c.Args[0]
	for _, x := range programs {
		if word == x {
			p.fail(c.Line, "%s runs already where it should: expected another command, such as set", word)
			return
		}
	}
	switch {
	case h.Role != Node && h.Role != Server || h.Rendezvous:
		p.fail(c.Line, "%s runs no weft to say that to: expected a host, or a server that is no rendezvous", h.Name)
	case (h.Role == Server) != (word == "admin"):
		p.fail(c.Line, "%s is a %s: expected weft admin of the server, and the other commands of hosts", h.Name, h.Role)
	}
}
