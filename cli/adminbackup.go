package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"weft"
	"weft/control"
)

// backupDoc is what weft admin backup --json prints, restoreDoc what restore does.
type (
	backupDoc struct {
		Schema int    `json:"schema_version"`
		File   string `json:"file"`
		Bytes  int64  `json:"bytes"`
	}
	restoreDoc struct {
		Schema    int      `json:"schema_version"`
		Nodes     int      `json:"nodes"`
		Users     int      `json:"users"`
		Withdrawn []uint32 `json:"withdrawn_keys"` // one-off keys, which may have been used since
	}
)

func (ad *admin) backupCommand() *cobra.Command {
	return &cobra.Command{
		Use: "backup FILE", Short: "Write all that the server keeps into a file, while it runs", Args: args(1, 1),
		Long: `Write all that the server keeps into a file, while it runs: its keys, its certificate and its database as it is at one moment. "-" is
standard output. Whoever has the file can be the server: keep it as safe as that. An earlier FILE is replaced when the new one is whole.`,
		RunE: func(c *cobra.Command, list []string) error {
			if list[0] == "-" {
				return notRunning(ad.client().Backup(c.Context(), ad.out))
			}
			f, err := os.CreateTemp(filepath.Dir(list[0]), ".weft-backup-") // of mode 0600
			if err != nil {
				return fmt.Errorf("the backup cannot be written: %w", err)
			}
			defer os.Remove(f.Name())
			defer f.Close()
			if err := ad.client().Backup(c.Context(), f); err != nil {
				return notRunning(err)
			}
			size, err := f.Seek(0, io.SeekCurrent)
			if err == nil {
				err = f.Sync()
			}
			if err == nil {
				err = os.Rename(f.Name(), list[0])
			}
			if err != nil {
				return fmt.Errorf("the backup cannot be written: %w", err)
			}
			doc := backupDoc{weft.SchemaVersion, list[0], size}
			return show(ad, doc, nil, func(d backupDoc) { fmt.Fprintf(ad.out, "%s: %d bytes\n", d.File, d.Bytes) })
		},
	}
}

func (ad *admin) restoreCommand() *cobra.Command {
	var keep bool
	c := &cobra.Command{
		Use: "restore FILE", Short: "Make the server's directory of a backup; no server may run there", Args: args(1, 1),
		Long: `Make the server's directory, which must be empty or not there, of a backup; "-" is standard input. The server that is started there
then carries on: machines that were members know it, and machines that joined since the backup have to join again. What was done
since is undone: whoever was removed or disabled after the backup is in again.

Join keys for one machine that were not used yet at the backup are withdrawn, since they may have been used after it.`,
		RunE: func(c *cobra.Command, list []string) error {
			in := ad.in
			if list[0] != "-" {
				f, err := os.Open(list[0])
				if err != nil {
					return fmt.Errorf("the backup cannot be read: %w", err)
				}
				defer f.Close()
				in = f
			}
			r, err := control.Restore(c.Context(), in, ad.dir, keep)
			if err != nil {
				return fmt.Errorf("nothing was restored: %w", err)
			}
			doc := restoreDoc{weft.SchemaVersion, r.Nodes, r.Users, append([]uint32{}, r.Withdrawn...)}
			return show(ad, doc, nil, func(d restoreDoc) {
				fmt.Fprintf(ad.out, "restored: %d nodes, %d users", d.Nodes, d.Users)
				if n := len(d.Withdrawn); n > 0 {
					fmt.Fprintf(ad.out, "; %d join keys for one machine were withdrawn, since they may have been used", n)
				}
				fmt.Fprintln(ad.out)
			})
		},
	}
	c.Flags().BoolVar(&keep, "keep-keys", false, "keep unused keys for one machine: none was used since the backup")
	return c
}
