// Package lab runs weft, the real binary, in laid-out networks. A [Fleet] is a server and nodes in the hosts of
// a netns.Lab, as tests, demonstration and benchmarks all need them.
package lab

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"weft"
	"weft/control"
	"weft/lab/netns"
	"weft/node"
)

// A Fleet starts weft in hosts. State directories, sockets and token files are below Dir, a directory each.
type Fleet struct {
	Binary string // path of weft
	Dir    string
}

// A Server is a running weft server, or relay.
type Server struct {
	Host    *netns.Host
	Process *netns.Process
	Dir     string
	URL     string
	fleet   Fleet
}

// StartServer starts weft server in a host, on ports 443 and 3478, and waits until it answers.
func (f Fleet) StartServer(ctx context.Context, h *netns.Host, flags ...string) (*Server, error) {
	s := &Server{Host: h, Dir: filepath.Join(f.Dir, h.Name+"-server"), fleet: f}
	s.URL = "https://" + h.Addr().String()
	return s, s.Start(ctx, flags...)
}

// Start starts the server, again after it was stopped.
func (s *Server) Start(ctx context.Context, flags ...string) error {
	args := append([]string{"server", "--data", s.Dir, "--listen", ":443", "--stun", ":3478", "--url", s.URL}, flags...)
	var err error
	if s.Process, err = s.Host.Start(s.Host.Command(ctx, s.fleet.Binary, args...)); err != nil {
		return err
	}
	return netns.WaitFor(ctx, "the server to answer", func() error {
		if err := s.Process.Err(); err != nil {
			return err
		}
		_, err := control.NewAdminClient(filepath.Join(s.Dir, "admin.sock")).Status(ctx)
		return err
	})
}

// Admin runs weft admin on the server and returns what it printed.
func (s *Server) Admin(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.fleet.Binary, append([]string{"admin", "--data", s.Dir}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("weft admin %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// Token makes a join token.
func (s *Server) Token(ctx context.Context, flags ...string) (string, error) {
	return s.Admin(ctx, append([]string{"key", "create"}, flags...)...)
}

// A Node is a running weft node.
type Node struct {
	*node.Client
	Name    string
	Host    *netns.Host
	Process *netns.Process
	State   string
	Socket  string
	fleet   Fleet
}

// StartNode starts weft node in a host under a name, and does not wait for it. The token goes in by the
// environment, as anybody should do it who does not want it seen.
func (f Fleet) StartNode(ctx context.Context, h *netns.Host, name, token string, flags ...string) (*Node, error) {
	state := filepath.Join(f.Dir, name)
	socket := filepath.Join(f.Dir, name+".sock")
	n := &Node{Client: node.NewClient(socket), Name: name, Host: h, State: state, Socket: socket, fleet: f}
	return n, n.Start(ctx, token, flags...)
}

// Start starts the node, again after it was stopped.
func (n *Node) Start(ctx context.Context, token string, flags ...string) error {
	args := append([]string{"node", "--state", n.State, "--socket", n.Socket, "--name", n.Name}, flags...)
	cmd := n.Host.Command(ctx, n.fleet.Binary, args...)
	if token != "" {
		cmd.Env = append(cmd.Environ(), "WEFT_TOKEN="+token)
	}
	var err error
	n.Process, err = n.Host.Start(cmd)
	return err
}

// Up waits until the node has its network, and returns its status.
func (n *Node) Up(ctx context.Context) (weft.Status, error) {
	var s weft.Status
	return s, netns.WaitFor(ctx, n.Name+" to be up", func() (err error) {
		if err := n.Process.Err(); err != nil {
			return err
		}
		if s, err = n.Status(ctx); err == nil && s.State != weft.Running {
			err = fmt.Errorf("it is %s: %s", s.State, strings.Join(s.Problems, "; "))
		}
		return err
	})
}

// Peer returns what the node says of a peer.
func (n *Node) Peer(ctx context.Context, name string) (weft.PeerStatus, error) {
	s, err := n.Status(ctx)
	if err != nil {
		return weft.PeerStatus{}, err
	}
	for _, p := range s.Peers {
		if p.Name == name {
			return p, nil
		}
	}
	return weft.PeerStatus{}, fmt.Errorf("%s knows no peer %s", n.Name, name)
}

// Reaches waits until the node reaches a peer by one of the methods.
func (n *Node) Reaches(ctx context.Context, peer string, methods ...weft.Method) (weft.PeerStatus, error) {
	var p weft.PeerStatus
	return p, netns.WaitFor(ctx, fmt.Sprintf("%s to reach %s by %v", n.Name, peer, methods), func() (err error) {
		if p, err = n.Peer(ctx, peer); err != nil {
			return err
		}
		for _, m := range methods {
			if p.Method == m {
				return nil
			}
		}
		return fmt.Errorf("it is reached by %s (%s)", p.Method, p.Reason)
	})
}
