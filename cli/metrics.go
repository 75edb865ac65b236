package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft"
	"weft/node"
)

// exposition is the type of Prometheus's text format, version 0.0.4.
const exposition = "text/plain; version=0.0.4; charset=utf-8"

// scrapeTimeout is how long a scrape may take: Prometheus gives up after 10 s, unless it is told otherwise.
const scrapeTimeout = 10 * time.Second

func (a *app) metricsCommand() *cobra.Command {
	var listen string
	c := &cobra.Command{
		Use:   "metrics",
		Short: "Print counters and gauges in Prometheus's text format, or serve them",
		Long: `Print counters and gauges of this node, its peers and their paths, in Prometheus's text format: for the textfile
collector, for example. With --listen, serve them at http://ADDRESS/metrics until interrupted, to whoever can connect there:
who this machine's peers are and where they are can be read in them. docs/metrics.md has what each tells.

Exit code 0, or 3 when there is no daemon; what is served answers with status 503 then, and goes on when it is back.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("listen") {
				return a.serveMetrics(c.Context(), listen)
			}
			m, err := a.client().Metrics(c.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(m)
			}
			return writeMetrics(a.out, m)
		},
	}
	c.Flags().StringVar(&listen, "listen", "", "serve them at this address and port, for example 127.0.0.1:9470")
	return c
}

// serveMetrics answers scrapes until ctx ends.
func (a *app) serveMetrics(ctx context.Context, listen string) error {
	if _, port, err := net.SplitHostPort(listen); err != nil {
		return usagef("--listen: %s is no address: give IP:PORT, for example 127.0.0.1:9470", quote(listen))
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return usagef("--listen: %s is no port: give 0 to 65535, where 0 takes one that is free", quote(port))
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("%w: choose another address with --listen", err)
	}
	fmt.Fprintf(a.err, "metrics at http://%s/metrics\n", l.Addr())
	mux := http.NewServeMux()
	client := a.client()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
		defer cancel()
		m, err := client.Metrics(ctx)
		if err != nil {
			status := http.StatusInternalServerError
			if errors.Is(err, node.ErrNotRunning) {
				status = http.StatusServiceUnavailable
			}
			http.Error(w, oneLine(err.Error()), status)
			return
		}
		w.Header().Set("Content-Type", exposition)
		writeMetrics(w, m) // who does not listen has gone
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: scrapeTimeout, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// writeMetrics writes the text format.
func writeMetrics(to io.Writer, m weft.Metrics) error {
	w := bufio.NewWriter(to)
	for _, f := range m.Families {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", f.Name, escapeHelp.Replace(f.Help), f.Name, f.Type)
		for _, s := range f.Samples {
			w.WriteString(f.Name)
			for i, label := range slices.Sorted(maps.Keys(s.Labels)) {
				if i == 0 {
					w.WriteByte('{')
				} else {
					w.WriteByte(',')
				}
				fmt.Fprintf(w, `%s="%s"`, label, escapeLabel.Replace(s.Labels[label]))
			}
			if len(s.Labels) > 0 {
				w.WriteByte('}')
			}
			fmt.Fprintf(w, " %s\n", strconv.FormatFloat(s.Value, 'g', -1, 64))
		}
	}
	return w.Flush()
}

var (
	escapeHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)
