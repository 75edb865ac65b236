// Package demo shows on one machine what weft does: two homes behind NATs, one private network.
//
// With network namespaces it lays out a public network with the server, two homes behind
// port-restricted cones and a node in each, and plays one story through: a page is fetched by name,
// the path moves from the relay to a direct one, then the direct path is cut, then all UDP, then all
// is restored. Then it is decided who may reach whom: a policy refuses the page and lets it in again, a machine without
// weft is reached through a router, and by a name. One TCP connection carries numbered blocks through the first act, and every phase is
// measured. Without namespaces it says why, and shows the userspace mode on loopback instead.
//
// What is printed is what happened: every time is measured, every change of path is the daemon's
// own record with its reason, and a claim that does not hold ends the demonstration with an error.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"weft"
	"weft/host"
	"weft/lab/netns"
	"weft/node"
)

// Options say how the demonstration runs.
type Options struct {
	Binary string    // the weft program to show
	Out    io.Writer // where the story is told
	// Keep leaves everything standing at the end, tells how to look around, and cleans up at Ctrl-C.
	Keep bool
}

const (
	// storyLimit bounds the whole story: it takes about half of this.
	storyLimit = 100 * time.Second
	// stepLimit bounds what the story waits for in one place.
	stepLimit = 20 * time.Second
	// logTail is how many lines of each program's log are shown when the story fails.
	logTail = 12
)

// Run plays the demonstration and returns nil if all that it shows is true. It cleans up in every
// case, also when ctx ends or the person says Ctrl-C.
func Run(ctx context.Context, o Options) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	binary, err := filepath.Abs(o.Binary)
	if err != nil {
		return err
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("the weft program to demonstrate is missing (%w): run make build", err)
	}
	s := &scene{teller: newTeller(o.Out), binary: binary, keep: o.Keep}
	why := netns.Available()
	if why == nil {
		why = host.CheckTUN()
	}
	if why != nil {
		s.print("weft: two nodes without root, one private network\n\n")
		s.print("Two homes behind NATs cannot be shown here: %v.\nSo this shows the userspace mode: no interface, no root, a proxy instead.\n\n", why)
		err = s.loopback(ctx)
	} else {
		s.print("weft: two homes behind NATs, one private network\n\n")
		err = s.homes(ctx)
	}
	switch {
	case s.left != nil:
		return errors.Join(err, fmt.Errorf("cleaning up: %w", s.left))
	case ctx.Err() != nil && !s.done:
		return errors.New("the demonstration was interrupted; everything is cleaned up")
	}
	return err
}

// scene is what both demonstrations have in common: the programs, and the two nodes that meet.
type scene struct {
	*teller
	binary    string
	keep      bool
	done      bool  // the story was told to its end
	left      error // what could not be cleaned up
	dir       string
	processes []*netns.Process
	here      *node.Client // the daemon of the node that the story is told from
	told      time.Time    // of the newest change of path that was told
}

// The nodes' names.
const (
	hereName  = "laptop"
	thereName = "nas"
)

// runner runs a program to its end, in a namespace or on the machine itself.
type runner func(ctx context.Context, name string, args ...string) (string, error)

// wait is netns.WaitFor with a limit, ended early by the death of any program of the scene.
func (s *scene) wait(ctx context.Context, what string, cond func() error) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	var dead error
	err := netns.WaitFor(ctx, what, func() error {
		for _, p := range s.processes {
			if dead = p.Err(); dead != nil {
				cancel()
				return dead
			}
		}
		return cond()
	})
	if dead != nil {
		return dead
	}
	return err
}

// tokenFile makes a join key on the server and keeps it in a file that nobody else reads: a token on
// a command line could be read there by everybody.
func (s *scene) tokenFile(ctx context.Context, run runner, data string) (string, error) {
	var token string
	err := s.wait(ctx, "the server", func() (err error) {
		token, err = run(ctx, s.binary, "admin", "key", "create", "--data", data, "--reusable")
		return err
	})
	if err != nil {
		return "", err
	}
	file := filepath.Join(s.dir, "token")
	return file, os.WriteFile(file, []byte(strings.TrimSpace(token)+"\n"), 0o600)
}

// peer returns how the node here sees the one there, and tells of changes of path since the last look.
func (s *scene) peer(ctx context.Context) (weft.PeerStatus, error) {
	status, err := s.here.Status(ctx)
	if err != nil {
		return weft.PeerStatus{}, err
	}
	if status.State != weft.Running {
		return weft.PeerStatus{}, fmt.Errorf("%s is %s: %s", hereName, status.State, strings.Join(status.Problems, "; "))
	}
	for _, p := range status.Peers {
		if p.Name != thereName {
			continue
		}
		for _, change := range p.Switches {
			if change.At.After(s.told) {
				s.sayAt(change.At, "path to %s: %s -> %s (%s)", thereName, change.From, change.To, change.Reason)
				s.told = change.At
			}
		}
		return p, nil
	}
	return weft.PeerStatus{}, fmt.Errorf("%s does not know %s yet", hereName, thereName)
}

// reach waits until the node there is reached by a method.
func (s *scene) reach(ctx context.Context, method weft.Method) (p weft.PeerStatus, err error) {
	err = s.wait(ctx, "the path to become "+method.String(), func() error {
		p, err = s.peer(ctx)
		if err == nil && p.Method != method {
			err = fmt.Errorf("it is %s", p.Method)
		}
		return err
	})
	return p, err
}

// servePage serves a page that exists nowhere else, until the listener is closed.
func servePage(l net.Listener, whose string) (content string) {
	content = fmt.Sprintf("<!doctype html>\n<title>%[1]s</title>\n<h1>Hello from %[1]s</h1>\n<p>%[2]s</p>\n", whose, rand.Text())
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, content)
		}),
	}
	go server.Serve(l)
	return content
}

// fqdn is what a person types.
func fqdn(name string) string { return name + "." + weft.Domain }

// linger keeps the scene standing until ctx ends, where that was asked for.
func (s *scene) linger(ctx context.Context, hints ...string) {
	s.done = true
	if !s.keep {
		return
	}
	s.print("\nEverything stays up until Ctrl-C. Look around:\n")
	for _, h := range hints {
		s.print("  %s\n", h)
	}
	<-ctx.Done()
}

// postMortem shows the end of every program's log after a failure, and of a crash its beginning.
func (s *scene) postMortem() {
	for _, p := range s.processes {
		s.print("\n--- last words of %s ---\n%s\n", p.Name, netns.LastWords(p.Log(), logTail))
	}
}

// need says which of the programs are missing.
func need(programs ...string) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the demonstration needs %s: run scripts/install-deps demo", strings.Join(missing, " and "))
	}
	return nil
}
