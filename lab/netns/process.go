package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// stopGrace is how long a program may take to end after SIGTERM; then it is killed.
	stopGrace = 5 * time.Second
	// pollInterval is how often [WaitFor] looks: often enough not to blur what is measured in tenths
	// of seconds, seldom enough not to disturb two cores.
	pollInterval = 20 * time.Millisecond
)

// Command prepares a program that runs in the host, with the host's interfaces and /etc/resolv.conf.
// It is for the caller to run, or for [Host.Start]. When ctx ends it gets SIGTERM, and SIGKILL after
// a grace; its process id is that of the program itself, for `ip netns exec` becomes the program.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := Command(ctx, "ip", append([]string{"netns", "exec", h.namespace, name}, args...)...)
	// A namespace does not hide the machine's D-Bus, so a daemon in the lab could reconfigure the
	// resolver of the machine for an interface that it does not have.
	cmd.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS=unix:path=/nonexistent/dbus-of-"+h.namespace)
	return cmd
}

// Command prepares a program that runs on the machine itself and ends as those in hosts do.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	detach(cmd)
	return cmd
}

// Run runs a program in the host to its end and returns what it printed on its standard output. If
// it fails, the error carries its last words, to either.
func (h *Host) Run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := h.Command(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(stderr.String())
		if said == "" {
			said = strings.TrimSpace(stdout.String())
		}
		return stdout.String(), fmt.Errorf("%s on %s: %w: %s", filepath.Base(name), h.Name, errors.Join(err, ctx.Err()), inOneLine(said))
	}
	return stdout.String(), nil
}

// Process is a program that was started. Close of the lab ends those that [Host.Start] started.
type Process struct {
	// Name tells host and program, for messages.
	Name string
	// LogPath is the file that holds all that the program prints.
	LogPath string

	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

// Start starts a program that [Host.Command] prepared, leaves it running, and writes its standard
// output and error to a log file.
func (h *Host) Start(cmd *exec.Cmd) (*Process, error) {
	program := h.Name
	if len(cmd.Args) > 4 { // ip netns exec NAMESPACE PROGRAM
		program = filepath.Base(cmd.Args[4])
	}
	l := h.lab
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("starting %s on %s: the lab is closed", program, h.Name)
	}
	p, err := Start(h.Name+"/"+program, filepath.Join(l.logs, fmt.Sprintf("%02d-%s-%s.log", len(l.processes)+1, h.Name, program)), cmd)
	if err == nil {
		l.processes = append(l.processes, p)
	}
	return p, err
}

// Start starts a prepared program that belongs to no lab: the caller stops it. It may be used where
// labs are not available.
func Start(name, logPath string, cmd *exec.Cmd) (*Process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	defer log.Close() // the program has its own copy
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &Process{Name: name, LogPath: logPath, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns why a program is not running: nil while it runs, else how it ended and its last words.
func (p *Process) Err() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	how := "with exit code 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s ended (%s): %s", p.Name, how, inOneLine(p.Log()))
}

// Failed reports whether the program has ended otherwise than with exit code 0.
func (p *Process) Failed() bool {
	select {
	case <-p.done:
		return p.err != nil
	default:
		return false
	}
}

// Log returns what the program has printed until now.
func (p *Process) Log() string {
	content, err := os.ReadFile(p.LogPath)
	if err != nil {
		return ""
	}
	return string(content)
}

// Signal sends a signal to the program; one that has ended gets none.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signalling %s: %w", p.Name, err)
	}
	return nil
}

// Kill ends the program with SIGKILL and waits until it is gone.
func (p *Process) Kill() error {
	err := p.Signal(os.Kill)
	if err == nil {
		<-p.done
	}
	return err
}

// Stop ends the program with SIGTERM and waits until it is gone; one that is still there after a
// grace of five seconds is killed, and that is the error.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopGrace):
		return errors.Join(fmt.Errorf("%s did not end within %v of SIGTERM and was killed", p.Name, stopGrace), p.Kill())
	}
}

// stopAll stops programs all at once, so that the graces do not add up.
func stopAll(processes []*Process) {
	var wg sync.WaitGroup
	for _, p := range processes {
		wg.Go(func() { p.Stop() })
	}
	wg.Wait()
}

// WaitFor looks again and again until cond returns nil. When ctx ends first, the error tells what was
// waited for, how long, and what cond said last.
func WaitFor(ctx context.Context, what string, cond func() error) error {
	began := time.Now()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %v for %s: %w (%w)", time.Since(began).Round(time.Millisecond), what, err, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
