-- Names with dots, quotes, spaces, capitals, an emoji, a keyword, and of the longest length.
-- step
CREATE TABLE "Weird.Table ""x"" 🦀"("Id" int PRIMARY KEY, "a b" text, "select" text, "ü" text);
INSERT INTO "Weird.Table ""x"" 🦀" VALUES (1, 'a', 'b', 'c');
CREATE TABLE "select"("from" int PRIMARY KEY);
INSERT INTO "select" VALUES (1);
CREATE TABLE xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx(id int PRIMARY KEY);
INSERT INTO xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx VALUES (1);
-- step
UPDATE "Weird.Table ""x"" 🦀" SET "a b" = 'z';
INSERT INTO "select" VALUES (2);
DELETE FROM xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx;
-- rows "Weird.Table ""x"" 🦀": "Id", "a b", "select", "ü"
1|z|b|c
-- rows "select": "from"
1
2
