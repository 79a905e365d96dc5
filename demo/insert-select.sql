INSERT INTO orders (customer) SELECT 'select ' || n FROM generate_series(1, :rows) n;
INSERT INTO events (payload) SELECT 'select ' || n FROM generate_series(1, :rows) n;
INSERT INTO invoices (cents) SELECT n FROM generate_series(1, :rows) n;
